# Announcements come before the words that change the data, and are restarted over another rail after the data have
# changed again: the data are those that held at the announcement's turn, for one that is kept as for one that is matched.

set protocol get

0 data 7 to 1
0 send 1 tag 7 length 90000 as first
0 data 8 to 1
0 send 1 tag 7 length 90000 as second
0 data 9 to 1
1 receive 0 tag 7 length 90000 as first
deliver rail 0 0->1 RGET seq 3
deliver rail 0 0->1 RGET seq 1
deliver rail 0 0->1 IMMEDIATE seq 4
deliver rail 0 0->1 IMMEDIATE seq 0
deliver rail 0 0->1 IMMEDIATE seq 2
0 data 10 to 1
deliver rail 0 0->1 IMMEDIATE seq 5

break rail 0 at 0
break rail 0 at 1
settle
1 receive 0 tag 7 length 90000 as second
settle
expect received first whole data 7
expect received second whole data 8
expect sent first ok
expect sent second ok
expect nothing left
