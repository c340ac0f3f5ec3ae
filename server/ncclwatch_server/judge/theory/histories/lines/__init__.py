"""What the source lines of calls tell, as read on the nodes that have them."""
