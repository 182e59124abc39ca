"""The EC2 Query API, for accounts over the network."""
