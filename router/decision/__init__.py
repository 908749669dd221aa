"""Dense or speculative: rules, cost model, forecast, guard.

Pure: no Ray, no vLLM, no state of a request.
"""
