# Words that change the immediate data go again over the next rail, like the messages between them, and arrive in the
# wrong order there; one of them had arrived. Each message brings the data that were set before it.

0 data 7 to 1
0 send 1 tag 7 length 100 as first
0 data 9 to 1
0 send 1 tag 7 length 200 as second
0 data none to 1
0 data 4 to 1
0 data none to 1
0 send 1 tag 7 length 300 as third
expect wire rail 0 0->1 IMMEDIATE seq 4 none 1
arrive rail 0 0->1 IMMEDIATE seq 0
break rail 0 at 0

deliver rail 1 0->1 MATCH seq 7
deliver rail 1 0->1 IMMEDIATE seq 6 none 1
deliver rail 1 0->1 MATCH seq 3
deliver rail 1 0->1 IMMEDIATE seq 5 data 4
deliver rail 1 0->1 IMMEDIATE seq 2 data 9
expect 1 counter arrived 0
deliver rail 1 0->1 IMMEDIATE seq 0
expect 1 counter duplicate 1
1 receive 0 tag 7 length 100 as first
deliver rail 1 0->1 MATCH seq 1
expect received first whole data 7
settle

1 receive 0 tag 7 length 200 as second
1 receive 0 tag 7 length 300 as third
expect received second whole data 9
expect received third whole data none
expect 1 counter arrived 3
expect sent first ok
expect sent second ok
expect sent third ok
settle
expect nothing left
