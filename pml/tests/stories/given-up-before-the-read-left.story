# A rail that is full, and a user who gives a receive up whose read waits for room. Nothing is under way: the memory is back at
# once, and the sender, of which nobody wants anything any more, is done when there is room to tell it.

rails 1
set protocol get

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
full rail 0 at 1
deliver rail 0 0->1 RGET
1 abort m -> now
reuse m
free rail 0 at 1
expect no wire rail 0 1->0 READ
deliver rail 0 1->0 FIN
expect received m aborted
expect sent m ok
expect m untouched
settle
expect nothing left
