# The other one of two machines: does what the first sends.

attend
finish
