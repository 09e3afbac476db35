# Race (h), the strangest: NOTIFY could come before the announcement of the message that it is about.
#
# The announcement is given back by rail 0 and goes again over rail 1, without the memory that it named, and takes its time.
# Rail 0 comes back, and breaks once more. Nothing of the message went over it since: were the send still taken for one that
# named memory there, its NOTIFY would overtake the announcement, the receiver would never have heard of the message, and
# the two would end with different numbers of the attempt, waiting for each other.

set protocol get

0 send 1 tag 7 length 90000 as m
break rail 0 at 0
break rail 0 at 1
hold rail 1 0->1 RNDV restart 0 as late
settle
mend rail 0 0->1
settle for 1000 ms
expect 0 rail 0 to 1 up
expect 1 rail 0 to 0 up

break rail 0 at 0
break rail 0 at 1
settle
expect 0 counter restarts 0
release late

1 receive 0 tag 7 length 90000 as m
settle
expect received m whole
expect sent m ok
expect nothing left
