"""Real models in exact bytes: layer kinds, one place per family, quantised weights, KV arithmetic.

`layers` has the table of layer kinds, `kv` prices them, `families` reads configs into layers and a tensor table,
`quantised` turns a plain tensor table into what a quantised checkpoint stores. Nothing here opens a file.
"""
