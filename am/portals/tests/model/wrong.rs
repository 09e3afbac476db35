//! Rules that might be read wrongly. A test can have the model follow one of them: a story that claims to
//! catch it has to fail then.

macro_rules! wrongs {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// One rule, read wrongly.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Wrong {
            $($(#[$doc])* $name,)*
        }

        impl Wrong {
            /// All of them, with the names that stories use.
            pub(crate) const ALL: &[(Self, &str)] = &[$((Self::$name, $text)),*];
        }
    };
}

wrongs! {
    /// Section 6, step 5: who may not use an entry goes on to the next one.
    PermissionIsMatching = "permission-is-matching";
    /// Section 6, step 3: what does not fit into a NO_TRUNCATE entry is dropped, instead of passing it.
    NoTruncateIsAnError = "no-truncate-is-an-error";
    /// Section 6, step 3: NO_TRUNCATE is judged by the entry's length alone, not by the room from the offset
    /// on.
    NoTruncateForgetsTheOffset = "no-truncate-forgets-the-offset";
    /// Section 6, step 3: the overflow list is searched first.
    OverflowFirst = "overflow-first";
    /// Section 6, step 3: the latest entry of a list is searched first.
    LatestFirst = "latest-first";
    /// Section 6, step 3: bits that are set in the mask have to match, instead of being ignored.
    MaskIsInverted = "mask-is-inverted";
    /// Section 6, step 3: the initiator is not compared.
    AnyoneMatches = "anyone-matches";
    /// Section 6, step 2: what meets a disabled table entry counts as dropped.
    DisabledCountsAsDropped = "disabled-counts-as-dropped";
    /// Section 6, step 4: flow control drops.
    FlowControlDrops = "flow-control-drops";
    /// Section 6, step 7: every refused request posts PT_DISABLED.
    PtDisabledAgainAndAgain = "pt-disabled-again-and-again";
    /// Section 6, step 4: without flow control a request that no entry takes disables the table entry.
    DropsDisable = "drops-disable";
    /// Section 6, step 5: fetching needs OP_GET alone.
    FetchNeedsGetOnly = "fetch-needs-get-only";
    /// Section 6, step 5: an atomic needs both bits.
    AtomicNeedsBoth = "atomic-needs-both";
    /// Section 6, step 5: a request that may not use a USE_ONCE entry uses it up.
    ViolationsUseUp = "violations-use-up";
    /// Section 6, step 5: violations count as dropped.
    ViolationsCountAsDropped = "violations-count-as-dropped";
    /// Section 6, step 6: a request lands though no header is left for it.
    NoHeaderStillLands = "no-header-still-lands";
    /// Section 6, step 6: UNEXPECTED_HDR_DISABLE keeps a header.
    HeaderDisableKeeps = "header-disable-keeps";
    /// Section 6, step 8: MANAGE_LOCAL uses the initiator's offset.
    ManagedUsesRemote = "managed-uses-remote";
    /// Section 6, step 8: MANAGE_LOCAL moves by the requested length, not by what was moved.
    ManagedMovesByRequest = "managed-moves-by-request";
    /// Section 6, step 8: an offset behind the end is dropped.
    BeyondIsDropped = "beyond-is-dropped";
    /// Section 6, step 9: unlinked when exactly `min_free` bytes are left.
    MinFreeIsInclusive = "min-free-is-inclusive";
    /// Section 6, step 9: `min_free` counts without MANAGE_LOCAL, too.
    MinFreeAlways = "min-free-always";
    /// Section 6, step 9: a full entry is unlinked though `min_free` is zero.
    FullIsUnlinked = "full-is-unlinked";
    /// Section 6, steps 9 and 10: AUTO_UNLINK comes before the event of the operation that used the entry up.
    UnlinkComesFirst = "unlink-comes-first";
    /// Section 6, step 9: AUTO_FREE comes with AUTO_UNLINK.
    FreeAtUnlink = "free-at-unlink";
    /// Section 6, step 9: AUTO_FREE never comes.
    NeverFree = "never-free";
    /// Section 6, append: the newest header is taken first.
    NewestHeaderFirst = "newest-header-first";
    /// Section 6, append: an entry of the overflow list takes headers, too.
    OverflowTakesHeaders = "overflow-takes-headers";
    /// Section 6, append: a persistent entry takes one header.
    PersistentTakesOne = "persistent-takes-one";
    /// Section 6, append: a USE_ONCE entry that took a header is linked.
    UseOnceIsLinked = "use-once-is-linked";
    /// Section 6, append: LINK comes before what the entry takes.
    LinkComesFirst = "link-comes-first";
    /// Section 6, append: the permission of an entry is not judged for headers.
    HeadersNeedNoPermission = "headers-need-no-permission";
    /// Section 6, search: a search counts violations.
    SearchCounts = "search-counts";
    /// Section 6, search: ONLY takes the header.
    SearchOnlyTakes = "search-only-takes";
    /// Section 6, search: DELETE leaves the header.
    SearchDeleteLeaves = "search-delete-leaves";
    /// Section 6, search: a search that finds nothing posts no event.
    SearchSaysNothing = "search-says-nothing";
    /// Section 6, search: a search links its entry.
    SearchLinks = "search-links";
    /// Section 6, unlink: headers do not hold an entry.
    UnlinkForgetsHeaders = "unlink-forgets-headers";
    /// Section 4: a table entry is freed with unexpected headers left.
    FreeForgetsHeaders = "free-forgets-headers";
    /// Section 7: a failing put has no SEND.
    NoSendOnFailure = "no-send-on-failure";
    /// Section 7: SUCCESS_DISABLE hides failures.
    SuccessDisableHidesFailures = "success-disable-hides-failures";
    /// Section 7: a full queue loses the newest events.
    QueueLosesNewest = "queue-loses-newest";
    /// Section 7: EQ_DROPPED is reported with every event after a loss.
    DroppedAgainAndAgain = "dropped-again-and-again";
    /// Section 7: a full queue with flow control overwrites.
    FullQueueOverwrites = "full-queue-overwrites";
    /// Section 7: a full queue closes only those of its table entries that have flow control themselves.
    FullQueueSparesOthers = "full-queue-spares-others";
    /// Section 7: SEND_DISABLE keeps SEND from being counted, too.
    SendDisableStopsCounting = "send-disable-stops-counting";
    /// Section 7: ACK and REPLY name the priority list, whichever list took the request.
    AnswersNameThePriorityList = "answers-name-the-priority-list";
    /// Section 8: CT_ACK has a full event.
    CtAckHasAnEvent = "ct-ack-has-an-event";
    /// Section 8: an ACK without a queue is not counted.
    AckNeedsQueue = "ack-needs-queue";
    /// Section 9: bytes are counted for failures.
    FailuresCountBytes = "failures-count-bytes";
    /// Section 9: requested bytes are counted, and not those that were moved.
    BytesAskedFor = "bytes-asked-for";
    /// Section 9: failures do not fire what waits.
    FailuresDoNotFire = "failures-do-not-fire";
    /// Section 9: what waits fires in the order in which it was issued.
    FiresInIssueOrder = "fires-in-issue-order";
    /// Section 9: what is satisfied already never fires.
    SatisfiedNeverFires = "satisfied-never-fires";
    /// Section 9: CTCancelTriggered cancels nothing.
    CancelForgets = "cancel-forgets";
    /// Section 9: CTSet fires nothing.
    SetFiresNothing = "set-fires-nothing";
    /// Section 9: what is triggered is limited for the whole interface, not for each counting event.
    TriggersAreShared = "triggers-are-shared";
    /// Section 5: EVENT_CT_COMM counts what meets a header.
    CommCountsOverflow = "comm-counts-overflow";
    /// Section 5: COMM_DISABLE keeps a put from being counted.
    CommDisableStopsCounting = "comm-disable-stops-counting";
    /// Section 5: ACK_DISABLE does nothing.
    AckDisableAcknowledges = "ack-disable-acknowledges";
    /// Section 5: LOCAL_INC_UH_RLENGTH does nothing.
    NoLocalIncrease = "no-local-increase";
    /// Section 10: CSWAP compares with the bytes that were sent.
    CswapComparesData = "cswap-compares-data";
    /// Section 10: CSWAP_LE and its kin compare the target with the operand, not the operand with the target.
    CswapIsTurned = "cswap-is-turned";
    /// Section 10: MSWAP takes the bits that are not in the mask.
    MaskedSwapIsInverted = "masked-swap-is-inverted";
    /// Section 10: a fetch brings what is there afterwards.
    FetchBringsTheNew = "fetch-brings-the-new";
    /// Section 11: the requests of one initiator are matched in any order.
    NoOrder = "no-order";
    /// Section 3: an interface without a map can be used.
    MapIsOptional = "map-is-optional";
}

impl Wrong {
    /// By the name that stories use.
    pub(crate) fn of(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|(_, text)| *text == name)
            .map(|(wrong, _)| *wrong)
    }
}
