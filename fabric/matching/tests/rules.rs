//! Each rule of matching by name. reference: bfo, section 4; portals, sections 5, 6 and 11; ofi, P9.

use doorbell_matching::{
    Capacity, Entry, EntryHandle, List, Load, Match, MatchError, MatchKey, Matcher, Pattern, Posted,
    Unexpected,
};

const KEY: MatchKey = MatchKey::new(1, 2, 3);
/// Everything of table 1.
const ANY: Pattern = Pattern::any_source(1, 0).ignoring(u64::MAX);

fn matcher() -> Matcher {
    Matcher::new(42, Capacity::default())
}

fn receive(token: u64) -> Entry {
    Entry::once(KEY.into(), 100, token)
}

#[track_caller]
fn link(matcher: &mut Matcher, entry: Entry) -> EntryHandle {
    match matcher.post(&entry) {
        Posted::Linked(handle) => handle,
        Posted::Found(found) => panic!("found {found:?} instead of waiting"),
    }
}

#[track_caller]
fn found(matcher: &mut Matcher, entry: Entry) -> Unexpected {
    match matcher.post(&entry) {
        Posted::Found(found) => found,
        Posted::Linked(handle) => panic!("{handle} was linked past a kept message"),
    }
}

#[track_caller]
fn taken(matcher: &mut Matcher, key: MatchKey, length: u64) -> Match {
    matcher.arrive(key, length).expect("an entry takes it")
}

/// The tokens of the entries that take arrivals of one key, until none does.
fn takers(matcher: &mut Matcher, key: MatchKey) -> Vec<u64> {
    std::iter::from_fn(|| matcher.arrive(key, 1))
        .map(|hit| hit.token)
        .collect()
}

#[test]
fn the_earliest_posted_of_one_key_wins() {
    let mut matcher = matcher();
    for token in 0..5 {
        link(&mut matcher, receive(token));
    }
    assert_eq!(takers(&mut matcher, KEY), [0, 1, 2, 3, 4]);
}

#[test]
fn the_earliest_posted_wins_across_exact_and_wildcards() {
    let mut matcher = matcher();
    let kinds = [
        Pattern::any_source(1, 3),
        KEY.into(),
        ANY,
        Pattern::exact(1, 2, 0).ignoring(0xff),
        KEY.into(),
        Pattern::exact(1, 0, 3).ignoring_source(0xff),
        Pattern::any_source(1, 3),
    ];
    for (token, pattern) in kinds.into_iter().enumerate() {
        link(&mut matcher, Entry::once(pattern, 100, token as u64));
    }
    assert_eq!(takers(&mut matcher, KEY), [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn the_earliest_posted_wins_also_beyond_the_hashed_classes() {
    let mut matcher = matcher();
    // Forty different masks, every third entry fully given.
    for token in 0..40 {
        let pattern = if token % 3 == 0 {
            KEY.into()
        } else {
            Pattern::from(KEY).ignoring(1 << token)
        };
        link(&mut matcher, Entry::once(pattern, 100, token));
    }
    assert_eq!(takers(&mut matcher, KEY), (0..40).collect::<Vec<_>>());
}

#[test]
fn other_tables_sources_and_bits_do_not_match() {
    let mut matcher = matcher();
    link(&mut matcher, receive(1));
    link(&mut matcher, Entry::once(Pattern::any_source(1, 3), 100, 2));
    assert_eq!(matcher.arrive(MatchKey::new(2, 2, 3), 0), None);
    assert_eq!(matcher.arrive(MatchKey::new(1, 2, 4), 0), None);
    assert_eq!(taken(&mut matcher, MatchKey::new(1, 9, 3), 0).token, 2);
    assert_eq!(matcher.arrive(MatchKey::new(1, 9, 3), 0), None);
    assert_eq!(taken(&mut matcher, KEY, 0).token, 1);
}

#[test]
fn any_tag_with_the_sign_bit_kept_never_takes_a_negative_tag() {
    let mut matcher = matcher();
    link(
        &mut matcher,
        Entry::once(Pattern::exact(1, 2, 0).ignoring(0x7fff_ffff), 100, 1),
    );
    assert_eq!(
        matcher.arrive(MatchKey::new(1, 2, u64::from(-7i32 as u32)), 0),
        None
    );
    assert_eq!(taken(&mut matcher, MatchKey::new(1, 2, 0x7fff_fffe), 0).token, 1);
}

#[test]
fn half_of_a_source_can_be_left_open() {
    let mut matcher = matcher();
    // Node 7 of a Portals interface, any process of it.
    let pattern = Pattern::exact(1, 7 << 16, 3).ignoring_source(0xffff);
    link(&mut matcher, Entry::once(pattern, 100, 1));
    assert_eq!(matcher.arrive(MatchKey::new(1, 8 << 16 | 5, 3), 0), None);
    assert_eq!(taken(&mut matcher, MatchKey::new(1, 7 << 16 | 5, 3), 0).token, 1);
}

#[test]
fn priority_comes_before_overflow_whatever_was_posted_first() {
    let mut matcher = matcher();
    link(&mut matcher, receive(1).overflow());
    link(&mut matcher, Entry::once(ANY, 100, 2).overflow());
    link(&mut matcher, Entry::once(ANY, 100, 3));
    link(&mut matcher, receive(4));
    let lists: Vec<_> = std::iter::from_fn(|| matcher.arrive(KEY, 1))
        .map(|hit| (hit.token, hit.list))
        .collect();
    let (priority, overflow) = (List::Priority, List::Overflow);
    assert_eq!(
        lists,
        [(3, priority), (4, priority), (1, overflow), (2, overflow)]
    );
}

#[test]
fn an_overflow_entry_is_linked_without_looking_at_kept_messages() {
    let mut matcher = matcher();
    matcher.keep(KEY, 5, 1);
    link(&mut matcher, receive(2).overflow());
    assert_eq!(matcher.unexpected_load().messages, 1);
}

#[test]
fn a_persistent_entry_stays_and_a_use_once_entry_goes() {
    let mut matcher = matcher();
    let stays = link(&mut matcher, Entry::persistent(KEY.into(), 100, 1));
    link(&mut matcher, receive(2));
    for _ in 0..3 {
        let hit = taken(&mut matcher, KEY, 10);
        assert_eq!((hit.token, hit.handle, hit.unlinked), (1, stays, false));
    }
    assert_eq!(matcher.cancel(stays), Ok(1));
    let hit = taken(&mut matcher, KEY, 10);
    assert_eq!((hit.token, hit.unlinked), (2, true));
    assert_eq!(matcher.posted_len(), 0);
}

#[test]
fn a_longer_message_is_cut() {
    let mut matcher = matcher();
    link(&mut matcher, receive(1));
    let hit = taken(&mut matcher, KEY, 101);
    assert_eq!((hit.offset, hit.length), (0, 100));
}

#[test]
fn the_senders_offset_counts_where_the_entry_does_not_manage_its_room() {
    let mut matcher = matcher();
    link(&mut matcher, Entry::persistent(KEY.into(), 100, 1));
    let place = |hit: Match| (hit.offset, hit.length);
    assert_eq!(matcher.arrive_at(KEY, 60, 30).map(place), Some((60, 30)));
    assert_eq!(matcher.arrive_at(KEY, 60, 50).map(place), Some((60, 40)));
    assert_eq!(matcher.arrive_at(KEY, 200, 50).map(place), Some((200, 0)));
    assert_eq!(
        matcher.arrive_at(KEY, u64::MAX, u64::MAX).map(place),
        Some((u64::MAX, 0))
    );
    // The fast path of plain receives gives the same result.
    let mut plain = self::matcher();
    link(&mut plain, receive(1));
    assert_eq!(plain.arrive_at(KEY, 60, 50).map(place), Some((60, 40)));
}

#[test]
fn a_no_truncate_entry_is_skipped_by_what_does_not_fit() {
    let mut matcher = matcher();
    link(
        &mut matcher,
        Entry {
            length: 10,
            ..receive(1)
        }
        .no_truncate(),
    );
    link(
        &mut matcher,
        Entry {
            length: 20,
            ..receive(2)
        }
        .no_truncate(),
    );
    assert_eq!(taken(&mut matcher, KEY, 11).token, 2);
    assert_eq!(matcher.arrive(KEY, 11), None);
    assert_eq!(matcher.arrive_at(KEY, 1, 10), None);
    assert_eq!(taken(&mut matcher, KEY, 10).token, 1);
}

#[test]
fn a_managed_entry_places_one_message_behind_the_other() {
    let mut matcher = matcher();
    link(&mut matcher, Entry::persistent(KEY.into(), 100, 1).managed(30));
    let place = |hit: Match| (hit.offset, hit.length, hit.unlinked);
    assert_eq!(place(taken(&mut matcher, KEY, 40)), (0, 40, false));
    // The sender's offset does not count.
    assert_eq!(matcher.arrive_at(KEY, 77, 30).map(place), Some((40, 30, false)));
    assert_eq!(place(taken(&mut matcher, KEY, 1)), (70, 1, true));
    assert_eq!(matcher.arrive(KEY, 1), None);
}

#[test]
fn min_free_unlinks_only_below_it_and_zero_never_does() {
    let mut matcher = matcher();
    link(&mut matcher, Entry::persistent(KEY.into(), 100, 1).managed(0));
    let full = taken(&mut matcher, KEY, 100);
    assert_eq!((full.length, full.unlinked), (100, false));
    let over = taken(&mut matcher, KEY, 5);
    assert_eq!((over.offset, over.length, over.unlinked), (100, 0, false));
    let mut exact = self::matcher();
    link(&mut exact, Entry::persistent(KEY.into(), 100, 1).managed(30));
    assert!(!taken(&mut exact, KEY, 70).unlinked, "exactly min_free is left");
}

#[test]
fn a_managed_entry_without_truncation_is_skipped_until_something_fits() {
    let mut matcher = matcher();
    link(
        &mut matcher,
        Entry::persistent(KEY.into(), 100, 1).managed(1).no_truncate(),
    );
    link(&mut matcher, receive(2));
    assert_eq!(taken(&mut matcher, KEY, 80).token, 1);
    assert_eq!(taken(&mut matcher, KEY, 21).token, 2);
    assert_eq!(matcher.arrive(KEY, 21), None);
    let last = taken(&mut matcher, KEY, 20);
    assert_eq!((last.token, last.offset, last.unlinked), (1, 80, true));
}

#[test]
fn a_kept_message_is_found_oldest_first_and_the_entry_is_not_linked() {
    let mut matcher = matcher();
    for token in 10..13 {
        matcher.keep(KEY, token, token);
    }
    matcher.keep(MatchKey::new(1, 2, 4), 0, 99);
    for token in 10..13 {
        let kept = found(&mut matcher, receive(1));
        assert_eq!((kept.token, kept.length, kept.key), (token, token, KEY));
    }
    assert_eq!(matcher.posted_len(), 0);
    link(&mut matcher, receive(1));
}

#[test]
fn a_wildcard_finds_the_earliest_arrival_of_all_sources() {
    let mut matcher = matcher();
    for source in [5, 4, 6] {
        matcher.keep(MatchKey::new(1, source, 3), 0, u64::from(source));
    }
    let any = Entry::once(Pattern::any_source(1, 3), 100, 1);
    let order: Vec<_> = (0..3).map(|_| found(&mut matcher, any).token).collect();
    assert_eq!(order, [5, 4, 6]);
}

#[test]
fn deep_queues_answer_wildcards_in_arrival_order() {
    let mut matcher = matcher();
    for number in 0..200u64 {
        matcher.keep(MatchKey::new(1, number as u32 % 10, number % 7), 1, number);
    }
    // More classes than have an index, each searched while the others are in use.
    for (ignore, bits) in [(0, 5), (1, 4), (2, 5), (3, 5), (4, 6), (7, 6), (0, 6)] {
        let pattern = Pattern::any_source(1, bits).ignoring(ignore);
        let wanted = matcher
            .unexpected()
            .find(|kept| pattern.matches(&kept.key))
            .map(|kept| kept.token);
        assert!(wanted.is_some());
        assert_eq!(
            matcher.claim(&pattern).map(|kept| kept.token),
            wanted,
            "ignoring {ignore}"
        );
    }
    let left: Vec<_> = matcher.unexpected().map(|kept| kept.token).collect();
    let claimed: Vec<_> = std::iter::from_fn(|| matcher.claim(&ANY))
        .map(|kept| kept.token)
        .collect();
    assert_eq!(claimed, left);
    assert_eq!(left.len(), 193);
}

#[test]
fn a_persistent_entry_first_takes_all_kept_messages_and_is_then_linked() {
    let mut matcher = matcher();
    for token in 0..3 {
        matcher.keep(KEY, 10, token);
    }
    // As a Portals append: every header found, then linked, its room untouched.
    let entry = Entry::persistent(KEY.into(), 100, 7).managed(1);
    for token in 0..3 {
        assert_eq!(found(&mut matcher, entry).token, token);
    }
    link(&mut matcher, entry);
    assert_eq!(taken(&mut matcher, KEY, 1).offset, 0);
}

#[test]
fn a_multi_receive_counts_kept_messages_as_filled_room() {
    let mut matcher = matcher();
    for token in 0..3 {
        matcher.keep(KEY, 30, token);
    }
    let mut entry = Entry::persistent(KEY.into(), 100, 7).managed(10);
    let mut places = Vec::new();
    let handle = loop {
        match matcher.post(&entry) {
            Posted::Linked(handle) => break handle,
            Posted::Found(kept) => {
                let place = entry.take(0, kept.length).expect("cutting is allowed");
                places.push((place.offset, place.length, place.unlinked));
            }
        }
    };
    assert_eq!(places, [(0, 30, false), (30, 30, false), (60, 30, false)]);
    let hit = taken(&mut matcher, KEY, 5);
    assert_eq!(
        (hit.handle, hit.offset, hit.length, hit.unlinked),
        (handle, 90, 5, true)
    );
}

#[test]
fn search_only_leaves_the_message_and_search_delete_takes_it() {
    let mut matcher = matcher();
    let handle = matcher.keep(KEY, 5, 1);
    assert_eq!(
        matcher.peek(&ANY),
        Some(Unexpected {
            handle,
            key: KEY,
            length: 5,
            token: 1
        })
    );
    assert_eq!(
        matcher.peek_for(&receive(0)).map(|kept| kept.handle),
        Some(handle)
    );
    assert_eq!(matcher.unexpected_load().messages, 1);
    assert_eq!(
        matcher.claim_for(&receive(0)).map(|kept| kept.handle),
        Some(handle)
    );
    assert_eq!(matcher.claim_for(&receive(0)), None);
    assert_eq!(matcher.peek(&ANY), None);
    assert_eq!(matcher.posted_len(), 0, "a search never links");
}

#[test]
fn a_search_without_truncation_skips_what_does_not_fit() {
    let mut matcher = matcher();
    matcher.keep(KEY, 101, 1);
    matcher.keep(KEY, 100, 2);
    assert_eq!(matcher.peek_for(&receive(0)).map(|kept| kept.token), Some(1));
    assert_eq!(found(&mut matcher, receive(0).no_truncate()).token, 2);
    assert_eq!(matcher.claim_for(&receive(0).no_truncate()), None);
    assert_eq!(matcher.claim(&KEY.into()).map(|kept| kept.token), Some(1));
}

#[test]
fn a_claimed_message_is_out_of_matching() {
    let mut matcher = matcher();
    matcher.keep(KEY, 5, 1);
    let claimed = matcher.claim(&ANY).expect("one is kept");
    link(&mut matcher, receive(2));
    assert_eq!(
        matcher.remove_unexpected(claimed.handle),
        Err(MatchError::StaleUnexpected(claimed.handle))
    );
}

#[test]
fn a_kept_message_is_removed_by_its_handle() {
    let mut matcher = matcher();
    let handles: Vec<_> = (0..3).map(|token| matcher.keep(KEY, 5, token)).collect();
    assert_eq!(
        matcher.remove_unexpected(handles[1]).map(|kept| kept.token),
        Ok(1)
    );
    assert_eq!(found(&mut matcher, receive(0)).token, 0);
    assert_eq!(found(&mut matcher, receive(0)).token, 2);
}

#[test]
fn cancel_takes_an_entry_out_wherever_it_stands() {
    for gone in 0..4 {
        let mut matcher = matcher();
        let handles: Vec<_> = (0..4).map(|token| link(&mut matcher, receive(token))).collect();
        assert_eq!(matcher.cancel(handles[gone]), Ok(gone as u64));
        let left: Vec<_> = (0..4).filter(|&token| token != gone as u64).collect();
        assert_eq!(takers(&mut matcher, KEY), left);
    }
}

#[test]
fn stale_handles_are_refused_even_when_the_slot_is_used_again() {
    let mut matcher = matcher();
    let old = link(&mut matcher, receive(1));
    taken(&mut matcher, KEY, 1);
    assert_eq!(matcher.cancel(old), Err(MatchError::StaleEntry(old)));
    let new = link(&mut matcher, receive(2));
    assert_ne!(new, old);
    assert_eq!(matcher.cancel(old), Err(MatchError::StaleEntry(old)));
    assert_eq!(matcher.cancel(new), Ok(2));
    assert_eq!(matcher.cancel(new), Err(MatchError::StaleEntry(new)));

    let old = matcher.keep(KEY, 1, 1);
    matcher.claim(&ANY);
    let new = matcher.keep(KEY, 1, 2);
    assert_eq!(
        matcher.remove_unexpected(old),
        Err(MatchError::StaleUnexpected(old))
    );
    assert_eq!(matcher.remove_unexpected(new).map(|kept| kept.token), Ok(2));
}

#[test]
fn handles_of_another_matcher_are_refused_where_nothing_stands() {
    let (mut one, mut other) = (matcher(), matcher());
    let handle = link(&mut one, receive(1));
    assert_eq!(other.cancel(handle), Err(MatchError::StaleEntry(handle)));
}

#[test]
fn errors_name_the_object_and_say_what_to_do() {
    let mut matcher = matcher();
    let handle = link(&mut matcher, receive(1));
    matcher.cancel(handle).expect("posted");
    let text = matcher.cancel(handle).expect_err("gone").to_string();
    assert!(
        text.starts_with(&handle.to_string()) && text.contains("too late"),
        "{text}"
    );
}

#[test]
fn a_dead_source_is_drained_oldest_first_and_others_stay() {
    let mut matcher = matcher();
    for number in 0..60u64 {
        matcher.keep(MatchKey::new(1, number as u32 % 3, number), 1, number);
    }
    let mut gone = Vec::new();
    assert_eq!(matcher.drain_source(1, |kept| gone.push(kept.token)), 20);
    assert_eq!(gone, (0..60).filter(|number| number % 3 == 1).collect::<Vec<_>>());
    assert_eq!(matcher.drain_source(1, |kept| panic!("{kept:?} again")), 0);
    assert_eq!(matcher.unexpected_load_of(1), Load::default());
    assert_eq!(matcher.unexpected_load().messages, 40);
}

#[test]
fn entries_that_name_a_dead_source_are_cancelled_and_wildcards_stay() {
    let mut matcher = matcher();
    link(&mut matcher, receive(1));
    link(
        &mut matcher,
        Entry::once(Pattern::exact(1, 2, 0).ignoring(0xff), 100, 2),
    );
    link(&mut matcher, Entry::once(Pattern::exact(1, 3, 3), 100, 3));
    link(&mut matcher, Entry::once(Pattern::any_source(1, 3), 100, 4));
    link(&mut matcher, receive(5).overflow());
    let mut gone = Vec::new();
    assert_eq!(matcher.cancel_source(2, |token| gone.push(token)), 3);
    gone.sort_unstable();
    assert_eq!(gone, [1, 2, 5]);
    assert_eq!(takers(&mut matcher, KEY), [4]);
    assert_eq!(takers(&mut matcher, MatchKey::new(1, 3, 3)), [3]);
}

#[test]
fn loads_count_messages_and_bytes_of_each_source() {
    let mut matcher = matcher();
    let first = matcher.keep(KEY, 10, 1);
    matcher.keep(MatchKey::new(9, 2, 77), 5, 2);
    matcher.keep(MatchKey::new(1, 3, 3), 7, 3);
    assert_eq!(
        matcher.unexpected_load(),
        Load {
            messages: 3,
            bytes: 22
        }
    );
    assert_eq!(
        matcher.unexpected_load_of(2),
        Load {
            messages: 2,
            bytes: 15
        }
    );
    matcher.remove_unexpected(first).expect("kept");
    assert_eq!(
        matcher.unexpected_load_of(2),
        Load {
            messages: 1,
            bytes: 5
        }
    );
    assert_eq!(matcher.unexpected_load_of(4), Load::default());
}

#[test]
fn hostile_lengths_do_not_wrap_the_counts() {
    let mut matcher = matcher();
    let first = matcher.keep(KEY, u64::MAX, 1);
    matcher.keep(KEY, u64::MAX, 2);
    assert_eq!(
        matcher.unexpected_load(),
        Load {
            messages: 2,
            bytes: u64::MAX
        }
    );
    matcher.remove_unexpected(first).expect("kept");
    assert_eq!(
        matcher.unexpected_load_of(2),
        Load {
            messages: 1,
            bytes: u64::MAX
        }
    );
    assert_eq!(matcher.claim(&ANY).map(|kept| kept.token), Some(2));
    assert_eq!(matcher.unexpected_load(), Load::default());
}

#[test]
fn reports_show_what_is_posted_and_kept() {
    let mut matcher = matcher();
    let entry = Entry::persistent(Pattern::any_source(1, 0xf0).ignoring(0xf), 100, 7)
        .managed(3)
        .no_truncate();
    let handle = link(&mut matcher, entry);
    taken(&mut matcher, MatchKey::new(1, 2, 0xf5), 10);
    let posted: Vec<_> = matcher.posted().collect();
    assert_eq!(posted, [(handle, Entry { filled: 10, ..entry })]);
    matcher.keep(KEY, 4, 9);
    assert_eq!(
        matcher.unexpected().map(|kept| kept.token).collect::<Vec<_>>(),
        [9]
    );
}

#[test]
fn the_order_of_matches_does_not_depend_on_the_seed() {
    let order = |seed| {
        let mut matcher = Matcher::new(seed, Capacity::default());
        for token in 0..50 {
            let key = MatchKey::new(1, 0, token % 5);
            let pattern = if token % 2 == 0 {
                key.into()
            } else {
                Pattern::any_source(1, key.bits)
            };
            link(&mut matcher, Entry::once(pattern, 100, token));
        }
        (0..50)
            .map(|number| {
                matcher
                    .arrive(MatchKey::new(1, 0, number % 5), 1)
                    .map(|hit| hit.token)
            })
            .collect()
    };
    let first: Vec<_> = order(0);
    assert!(first.iter().all(Option::is_some));
    assert_eq!(first, order(u64::MAX));
}

#[test]
fn handles_are_small_and_have_a_niche() {
    assert_eq!(size_of::<Option<EntryHandle>>(), 16);
    assert_eq!(size_of::<Option<doorbell_matching::UnexpectedHandle>>(), 16);
}

#[test]
fn what_was_looked_at_is_taken_once_and_only_if_it_is_still_there() {
    let mut matcher = Matcher::new(1, Capacity::default());
    matcher.post(&Entry::once(KEY.into(), 8, 1));
    let found = matcher.look(&KEY, 0, 8).unwrap();
    assert_eq!(
        (found.hit.token, matcher.posted_len()),
        (1, 1),
        "a look takes nothing"
    );
    assert_eq!(matcher.take(&found), Ok(()));
    assert_eq!(
        matcher.take(&found),
        Err(MatchError::StaleEntry(found.hit.handle))
    );
    assert_eq!(matcher.look(&KEY, 0, 8), None);

    let Posted::Linked(handle) = matcher.post(&Entry::persistent(KEY.into(), 8, 2)) else {
        panic!("nothing was kept")
    };
    let found = matcher.look(&KEY, 4, 8).unwrap();
    assert_eq!(
        (found.hit.offset, found.hit.length, found.hit.unlinked),
        (4, 4, false)
    );
    assert_eq!(matcher.cancel(handle), Ok(2));
    assert_eq!(matcher.take(&found), Err(MatchError::StaleEntry(handle)));
}

#[test]
fn a_caller_may_judge_kept_messages_by_token() {
    let mut matcher = Matcher::new(1, Capacity::default());
    for token in 0..40 {
        matcher.keep(KEY, 8, token);
    }
    let anybody = Pattern::any_source(KEY.table, KEY.bits);
    for pattern in [KEY.into(), anybody] {
        let found = matcher.peek_where(&pattern, |length, token| length == 8 && token >= 30);
        assert_eq!(found.map(|kept| kept.token), Some(30));
        let taken = matcher.claim_where(&pattern, |_, token| token == 20);
        assert_eq!(taken.is_some(), pattern == KEY.into(), "it can be taken once");
    }
    assert_eq!(matcher.unexpected_load().messages, 39);
}

#[test]
fn an_entry_can_be_linked_past_what_is_kept() {
    let mut matcher = Matcher::new(1, Capacity::default());
    matcher.keep(KEY, 8, 1);
    for entry in [
        Entry::once(KEY.into(), 8, 2),
        Entry::persistent(Pattern::any_source(KEY.table, KEY.bits), 8, 3),
    ] {
        matcher.link(&entry);
        assert_eq!(matcher.unexpected_load().messages, 1);
        assert_eq!(matcher.arrive(KEY, 8).map(|hit| hit.token), Some(entry.token));
    }
}
