"""The default back end: clients as compiled loops on the devices of this process.

`backend.py` answers a round's questions; `layout.py` turns a cohort into tables, `programs.py` holds the two compiled
programs, `gradients.py` and `client.py` what runs inside them, `devices.py` and `pool.py` where data lies.
"""
