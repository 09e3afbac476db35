# The news that a rail is broken travel over a slow one, and are there when the rail has long come back.
#
# They are about the connection that was, and say so: the one of now stays, though it is the only one that rank 1 has left.

break rail 0 at 0
hold rail 1 0->1 BROKEN path 0 number 0 as late
break rail 0 at 1
mend rail 0 0->1
settle for 1000 ms
expect 1 rail 0 to 0 up
release late
expect 1 rail 0 to 0 up
expect 1 counter late_word 1

# Of the connection of now, the same word counts.
break rail 0 at 0
deliver rail 1 0->1 BROKEN path 0 number 1
expect 1 rail 0 to 0 down
expect 1 counter late_word 1
settle
expect nothing left
