# Race (g) for an announcement that names memory: it errs after it arrived, and the receiver reads already.
#
# The memory is withdrawn with the rail that it was exposed on, so the read is refused, and the receiver asks for fragments
# instead. The announcement that went again is a duplicate. No handshake is needed, as the sender has no doubt: the rail
# gave the announcement back.

set protocol get

1 receive 0 tag 7 length 20000 as m
0 send 1 tag 7 length 20000 as m
arrive rail 0 0->1 RGET restart 0
expect wire rail 0 1->0 READ length 20000

break rail 0 at 0
expect no wire rail 1 0->1 NOTIFY
deliver rail 1 0->1 RNDV restart 0 restarted 0
expect 1 counter duplicate 1
deliver rail 0 1->0 READ
expect 1 counter fallbacks 1
deliver rail 1 0->1 BROKEN path 0
deliver rail 1 1->0 ACK offset 0 until 20000
settle

expect received m whole
expect sent m ok
expect 0 counter restarts 0
expect nothing left
