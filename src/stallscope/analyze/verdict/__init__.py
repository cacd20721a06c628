"""Which cause keeps the loop from its data: small rules over what was measured, and their order.

`facts` turns a run into the numbers that rules ask for; `storage`, `processing`, `workers`, `loop`
and `machine` hold a rule for each cause; `judge` and `stalled` decide which finding comes first;
`questions` says what to measure next; all thresholds stand in `limits`.
"""
