"""The limits of a request to each pool, which the router and the pool both check."""
