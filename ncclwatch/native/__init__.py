"""The optional native recorder: C++ sources, and how they are built and found."""
