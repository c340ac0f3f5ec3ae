"""The steps, in their order. One that has been released is never changed."""
