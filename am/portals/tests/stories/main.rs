//! Stories of the Portals rules: one file, one rule. Each `*.txt` in this folder is a test of the same name.
//!
//! Each story is played three times: on the plain model, on the real interface over a simulated network, and
//! there once more over a network that carries nothing but messages. It has to come out the same. A story
//! with `catches` is played on a model with that wrong reading of the rule, too, and has to fail.
//!
//! ```text
//! # prose to the end of the line
//! ranks 2                                  the stage, before anything else; otherwise two processes
//! interface plain physical                 otherwise with match lists (`matching`), and ranks (`logical`)
//! user 1 is 7                              otherwise all are of user 1
//! name 1 is 3:12                           otherwise process n is process 10 + n of node n
//! limit headers 2                          entries, headers, mds, cts, eqs, pt-index, iovecs, list-size,
//!                                          triggered
//! without interface 1                      or without map
//! catches permission-is-matching           a reading by its name in `model/wrong.rs`
//!
//! 0 eq q 16                                a queue, a counting event, a table entry
//! 0 ct c
//! 1 pt 4 eq q options flow-control
//! 0 md m length 64 [fill 7] [pieces 8,8] [eq q] [ct c] [options ct-ack,volatile]
//! 1 append e pt 4 length 64 options put [list overflow] [match 5] [ignore 0] [from 0] [uid 1] [ct c]
//!     [min-free 8] [user 1]                (in one line)
//! 1 search only pt 4 options put match 5 user 2        or delete; the rest as with append
//! 1 unlink e | enable 4 | disable 4 | free pt 4 | free ct c | free md m
//! 0 put m [at 0] length 8 to 1 pt 4 [bits 5] [offset 0] [ack full] [user 3] [hdr 4]
//! 0 get m length 8 to 1 pt 4
//! 0 atomic sum int32 m length 8 to 1 pt 4
//! 0 fetch cswap uint64 m from n [operand 5] to 1 pt 4
//! 0 inc c 1 0 | set c 1 0 | cancel c
//! 0 trigger c 3 put m length 8 to 1 pt 4               or any of the calls above, append and unlink
//! 0 write m at 8 int32 1 2 3
//! 0 put m length 99 to 1 pt 4 -> ARG_INVALID           the call ends so
//! unseen 0 put ...                         nothing arrives before the line after it
//!
//! expect 1 q PUT user 1 mlength 8          the next event; only these fields are compared, and that it
//!                                          ended well
//! expect 1 q PUT in e place 8              where it landed
//! expect 0 q ACK fail PERM_VIOLATION       or `fail any`
//! expect 0 q any SEND user 3               somewhere in the queue
//! expect 1 q dropped PUT                   and some before it were lost
//! expect 1 q nothing
//! expect 0 count c 1 0
//! expect 0 reaches c 5                     a wait for it is over; `not` behind it: it is not
//! expect 1 register drops 1                permissions, operations
//! expect 1 memory e at 8 uint8 1 2 3
//! ```
//!
//! A story lists every event: any that it does not expect are a failure.

#[allow(unused)]
#[path = "../model/mod.rs"]
mod model;
mod play;
#[allow(dead_code)]
#[path = "../rig/mod.rs"]
mod rig;
mod words;

use doorbell_fabric::ni::{Kind, Process};

use self::model::Wrong;
use self::rig::{ModelRig, RealRig, Setting};
use self::words::{Told, limit, small};

macro_rules! stories {
    ($($name:ident)*) => {
        const TOLD: &[&str] = &[$(stringify!($name)),*];

        $(
            #[test]
            fn $name() {
                tell(stringify!($name));
            }
        )*
    };
}

stories! {
    a_deferred_link_is_not_lost
    a_descriptor_may_be_released_under_way
    a_disabled_table_entry_refuses
    a_failing_put_still_has_its_send
    a_full_entry_stays_without_min_free
    a_full_queue_closes_all_of_its_tables
    a_full_queue_closes_its_flow_controlled_tables
    a_header_has_to_match_altogether
    a_header_needs_permission
    a_header_of_no_bytes_fits_everywhere
    a_header_takes_no_room
    a_locally_managed_entry_packs
    a_message_is_cut_at_the_end_of_the_entry
    a_node_or_a_process_may_be_any
    a_process_talks_to_itself
    a_queue_with_flow_control_loses_nothing
    a_queue_without_flow_control_overwrites
    a_search_counts_no_violation
    a_search_that_only_looks
    a_search_that_takes
    a_search_without_a_queue
    a_table_entry_is_taken_once
    a_table_entry_may_begin_disabled
    a_table_entry_that_nobody_allocated_drops
    a_table_entry_with_entries_is_not_freed
    a_triggered_append_needs_room_when_it_fires
    a_violation_does_not_use_an_entry_up
    a_volatile_source_may_be_changed_at_once
    a_wait_ends_by_a_failure
    acknowledgements
    an_acknowledgement_without_a_queue_counts
    an_answer_names_the_list
    an_answer_names_the_list_without_matching
    an_entry_may_acknowledge_nothing
    an_entry_used_once_by_a_header_is_never_linked
    an_interface_without_a_map_cannot_begin
    an_operation_that_the_entry_does_not_allow
    an_overflow_entry_keeps_a_header
    an_overflow_entry_may_keep_no_header
    appending_meets_the_oldest_header_first
    arguments_that_there_are_not
    as_many_triggers_as_the_limit_says
    atomics_have_a_largest_size
    atomics_reckon
    atomics_reckon_with_fractions
    atomics_reckon_with_long_doubles
    atomics_that_there_are_not
    bytes_are_counted_for_successes_only
    bytes_that_a_descriptor_does_not_have
    communication_is_counted_though_it_has_no_event
    conditional_swaps
    counting
    each_event_has_its_switch
    events_of_the_initiator
    every_operation_has_its_overflow_event
    fetching_brings_what_was_there
    flow_control_closes_the_table_entry
    flow_control_needs_a_queue
    free_at_once_when_it_keeps_no_headers
    free_when_its_headers_are_consumed
    from_one_process_only
    headers_hold_their_entry
    ignored_bits_may_differ
    later_writes_win
    limits_are_exact
    list_entries_meet_headers_too
    list_entries_take_whatever_comes
    long_messages_arrive_whole
    long_messages_fail_like_short_ones
    long_messages_meet_overflow_entries
    meeting_a_header_is_counted_by_its_own_option
    memory_in_several_pieces
    messages_of_no_bytes
    min_free_is_of_managed_entries
    no_header_is_left_under_flow_control
    one_interface_of_each_kind
    permission_is_judged_after_matching
    priority_before_overflow
    requests_are_matched_in_the_order_of_their_issue
    send_is_counted_without_an_event
    setting_a_count_fires
    short_messages_are_told_in_order
    success_is_hidden_and_failure_is_not
    the_first_entry_that_matches
    the_overflow_list_meets_nothing
    triggered_appends
    triggered_by_a_count
    triggered_by_what_arrives
    triggered_counting
    triggered_in_order_of_thresholds
    triggered_operations_are_cancelled
    triggers_are_judged_when_they_are_set
    unlink_events_are_switched_off_together
    unlinked_behind_all_that_it_took
    unlinked_behind_the_operation_that_used_it_up
    unlinked_behind_the_operation_without_matching
    unlinked_when_too_little_is_free
    used_once
    what_a_put_tells_its_target
    what_an_append_meets_leaves_the_local_offset
    what_an_append_meets_may_move_the_local_offset
    what_does_not_fit_passes_no_truncate
    what_does_not_fit_the_rest_passes_no_truncate
    who_is_judged_first_the_user_or_the_operation
}

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stories");

/// A story that was read.
struct Story {
    setting: Setting,
    catches: Vec<Wrong>,
    text: String,
}

impl Story {
    fn read(name: &str) -> Self {
        let file = format!("{FOLDER}/{}.txt", name.replace('_', "-"));
        let text = std::fs::read_to_string(file).expect("the story is there");
        let mut story = Self {
            setting: Setting::new(Kind::MATCHING_LOGICAL, 2),
            catches: Vec::new(),
            text: String::new(),
        };
        for (at, words) in lines(&text) {
            let set = story.set(&words);
            set.unwrap_or_else(|why| panic!("{name}.txt:{at}: {}\n  {why}", words.join(" ")));
        }
        story.text = text;
        story
    }

    /// The lines that belong to the stage.
    fn set(&mut self, words: &[&str]) -> Told {
        let setting = &mut self.setting;
        match *words {
            ["ranks", count] => setting.processes = Setting::new(setting.kind, small(count)?).processes,
            [
                "interface",
                lists @ ("matching" | "plain"),
                names @ ("logical" | "physical"),
            ] => {
                setting.kind = Kind {
                    matching: lists == "matching",
                    logical: names == "logical",
                };
            }
            ["user", rank, "is", uid] => setting.processes[small::<usize>(rank)?].uid = small(uid)?,
            ["name", rank, "is", name] => {
                let (nid, pid) = name.split_once(':').ok_or("a name is nid:pid")?;
                setting.processes[small::<usize>(rank)?].name = Process::physical(small(nid)?, small(pid)?);
            }
            ["limit", name, value] => limit(&mut setting.limits, name, value)?,
            ["without", "interface", rank] => setting.processes[small::<usize>(rank)?].has_interface = false,
            ["without", "map", rank] => setting.processes[small::<usize>(rank)?].has_map = false,
            ["catches", name] => {
                let wrong = Wrong::of(name).ok_or("there is no such reading")?;
                self.catches.push(wrong);
            }
            _ => {}
        }
        Ok(())
    }

    /// The lines that are not the stage's.
    fn script(&self) -> Vec<(usize, Vec<&str>)> {
        let all = lines(&self.text);
        all.filter(|(_, words)| !STAGE.contains(&words[0])).collect()
    }
}

/// How lines of the stage begin.
const STAGE: [&str; 7] = [
    "ranks",
    "interface",
    "user",
    "name",
    "limit",
    "without",
    "catches",
];

fn lines(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    text.lines().enumerate().filter_map(|(at, line)| {
        let words: Vec<&str> = line.split('#').next().unwrap_or("").split_whitespace().collect();
        (!words.is_empty()).then_some((at + 1, words))
    })
}

fn tell(name: &str) {
    let story = Story::read(name);
    let (setting, script) = (&story.setting, story.script());
    if let Err(why) = play::play(&script, setting, &mut ModelRig::new(setting, None)) {
        panic!("{name}.txt, on the model: {why}");
    }
    for wrong in &story.catches {
        let told = play::play(&script, setting, &mut ModelRig::new(setting, Some(*wrong)));
        assert!(told.is_err(), "{name}.txt does not catch {wrong:?}");
    }
    if let Err(why) = play::play(&script, setting, &mut RealRig::new(setting)) {
        panic!("{name}.txt: {why}");
    }
    let mut plain = setting.clone();
    let features = &mut plain.sim.capabilities.features;
    (features.get, features.put, features.atomics) = (false, false, false);
    if let Err(why) = play::play(&script, &plain, &mut RealRig::new(&plain)) {
        panic!("{name}.txt, over messages alone: {why}");
    }
}

#[test]
fn every_file_is_a_test() {
    let mut files: Vec<String> = std::fs::read_dir(FOLDER)
        .expect("the folder is there")
        .filter_map(|file| {
            let name = file
                .expect("it is a file")
                .file_name()
                .into_string()
                .expect("a name");
            Some(name.strip_suffix(".txt")?.replace('-', "_"))
        })
        .collect();
    files.sort();
    let mut told = TOLD.to_vec();
    told.sort_unstable();
    assert_eq!(told, files);
}

#[test]
fn every_wrong_reading_is_caught_by_a_story() {
    let caught: Vec<Wrong> = TOLD.iter().flat_map(|name| Story::read(name).catches).collect();
    let missing: Vec<_> = Wrong::ALL
        .iter()
        .filter(|(wrong, _)| !caught.contains(wrong))
        .collect();
    assert!(missing.is_empty(), "no story catches {missing:?}");
}

#[test]
fn every_story_names_its_rule() {
    for name in TOLD {
        let story = Story::read(name);
        let first = story.text.lines().next().unwrap_or("");
        assert!(first.starts_with("# Section"), "{name}.txt begins with {first:?}");
    }
}
