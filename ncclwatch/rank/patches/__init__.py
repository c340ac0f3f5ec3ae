"""Where torch is tapped. Each module of this package patches one subject and can take it back."""
