"""Dense or speculative: rules, times of the pools, cost model, forecast, guard.

Pure: no Ray, no vLLM, no state of a request.
"""
