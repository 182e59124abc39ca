"""Steps from one shape of the tables to the next, applied when a store is opened."""
