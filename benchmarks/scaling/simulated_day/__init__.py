"""A day of traffic in virtual time: requests within the SLOs, and GPU hours of each pool (../README.md).

Lives here: the traffic, the pools, the router's decision over known times, the comparison of systems.
Not here: engine times (`cluster.plan.engine`), the policies of autoscaling (`cluster.serve.autoscaling`, Ray Serve).
"""
