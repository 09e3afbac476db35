# A rail that came back breaks again while it proves itself, and only one side notices.
#
# The other one is told, and believes it: the news are about this connection, not about the one before, which was
# told as well. So it does not prove itself into an end that is closed.

break rail 0 at 0
hold rail 1 0->1 BROKEN path 0 as first
break rail 0 at 1
mend rail 0 0->1
settle for 100 ms
expect 1 rail 0 to 0 returning

release first
expect 1 rail 0 to 0 returning
expect 1 counter late_word 1

break rail 0 at 0
deliver rail 1 0->1 BROKEN path 0 number 1
expect 1 rail 0 to 0 down
settle
expect nothing left
