"""Several servers on one PostgreSQL: one leads, which is to judge and to tell, and the others follow it."""
