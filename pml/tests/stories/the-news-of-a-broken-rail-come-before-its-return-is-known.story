# A rail comes back and breaks again at one side before the other side knows that it came back.
#
# The news are about a connection that is still to come up there: they are kept, and end it when it does.

break rail 0 at 0
break rail 0 at 1
settle
mute rail 0 at 1
mend rail 0 0->1
expect 0 rail 0 to 1 returning
break rail 0 at 0
deliver rail 1 0->1 BROKEN path 0 number 1
settle for 30 ms
expect 1 rail 0 to 0 down

unmute rail 0 at 1
expect 1 rail 0 to 0 down
expect 1 counter late_word 0

# The next connection is another one.
mend rail 0 0->1
settle for 2000 ms
expect 0 rail 0 to 1 up
expect 1 rail 0 to 0 up
settle
expect nothing left
