# A whole message errs at its sender, but it had arrived: it goes again over the next rail, and is dropped by its number.
#
# The one behind it was lost with the rail, and comes once. The order is that of the sends.

0 send 1 tag 7 length 100 as first
0 send 1 tag 7 length 200 as second
arrive rail 0 0->1 MATCH seq 0
break rail 0 at 0
deliver rail 1 0->1 MATCH seq 1
deliver rail 1 0->1 MATCH seq 0
expect 1 counter duplicate 1

1 receive 0 tag 7 length 100 as first
1 receive 0 tag 7 length 200 as second
expect received first whole
expect received second whole
expect sent first ok
expect sent second ok
settle
expect nothing left
