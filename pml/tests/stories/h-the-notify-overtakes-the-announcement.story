# Race (h), the strangest: NOTIFY comes before the announcement of the message that it is about.
#
# The announcement is given back by rail 0 and goes again over rail 1, where it takes its time. Rail 0 comes back, and breaks
# once more: the send still counts as one that named memory there, and asks for a restart. The receiver has never heard of
# the message, and answers that it is ready. The restarted announcement is the first that it sees, and is put in order like
# any other; the one that was meant to be the first is a duplicate.

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
deliver rail 1 0->1 NOTIFY restart 1 receiver 0
deliver rail 1 1->0 RESTART-ACK restart 1 receiver 0
deliver rail 1 0->1 RGET restart 2 receiver 0
release late
expect 1 counter duplicate 1

1 receive 0 tag 7 length 90000 as m
settle
expect received m whole
expect sent m ok
expect nothing left
