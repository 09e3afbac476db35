//! Stories of failover: one file, one story. Each `*.story` in this folder is a test of the same name.
//!
//! In a story nothing moves by itself: each line is a frame that arrives or is lost, or an end that is
//! reported. The races of Open MPI's BFO are played here (reference: bfo, section 10), the ones that this
//! PML's design makes impossible too: as far as they can be played, and with what happens instead.
//!
//! ```text
//! # prose to the end of the line
//! ranks 3                                  the stage, before all else; otherwise two ranks, two rails
//! rails 3                                  the first is the quickest and the widest, by far
//! rail 1 cannot get                        (or put, or reclaim)
//! set protocol get                         put, fragments; otherwise by what the rails can do
//! set handshake always | resume zero | patience 0 ms | pipeline 4 | one-sided 30000
//!
//! 0 send 1 tag 7 length 90000 as m         and the name of the message
//! 1 receive 0 tag 7 length 90000 as m      (or from `any`)
//! 1 abort m -> now                         or wait
//! 0 data 9 to 1                            the immediate data of what is sent from here on; or `none`
//! 0 forget 1                               the peer, and everything that needs it
//! reuse m                                  its receiver has the memory back, and uses it for something else
//!
//! deliver rail 0 0->1 RGET                 the oldest such frame arrives, and its sender learns it
//! deliver all rail 0 0->1 BROKEN           every such frame
//! arrive rail 0 0->1 FRAG offset 4032      it arrives, and its sender does not learn it yet
//! complete rail 0 0->1                     ... and now it does
//! duplicate rail 0 0->1 ACK                a copy arrives, and the frame is still on its way
//! drop rail 0 0->1 MATCH                   it never arrives
//! hold rail 0 1->0 READ as late            it is not seen by `settle`, and outlives its rail
//! release late
//! fail rail 0 1->0 READ as indeterminate   a read or write (of the first rank) ends in an error; that
//!                                          of one that is held is reported, and it goes on
//! break rail 0 at 0                        it breaks for rank 0: [to 1] [because link] [keeping operations]
//! mend rail 0 0->1                         both directions work again
//! full rail 0 at 1                         it takes nothing more of rank 1, until
//! free rail 0 at 1
//! mute rail 0 at 1                         nothing of what happens to it is reported to rank 1, until
//! unmute rail 0 at 1
//! unseen break rail 0 at 0                 (or any other line) no rank looks before the line after it
//! poll at 0                                this rank takes what has arrived, and looks at no event
//! settle                                   everything arrives and is completed, until nothing is on its way
//! settle for 600 ms                        the same, and time goes by
//! wait 100 ms                              time goes by, nothing arrives
//! away 100 ms                              the same, and no rank looks
//! repeat 300 ... end
//!
//! expect wire rail 1 0->1 NOTIFY restart 1     it is on its way
//! expect no wire rail 1 0->1 NOTIFY
//! expect sent m ok                         or waits, lost, aborted; except for `waits`, that is its end
//! expect received m whole                  the same; and `data 9`, or `data none`
//! expect m untouched                       its memory is as its owner left it after `reuse`
//! expect 1 counter late_word 1             by the names in `counters.rs`
//! expect 1 rail 0 to 0 down                the state of a path
//! expect nothing left                      no request, no frame, no exposed memory; each story ends so
//! ```
//!
//! Frames go by the names in `wire.rs`; a MATCH that changes the immediate data is IMMEDIATE, and the four
//! words of the restart handshake are NOTIFY, RESTART-ACK, RESTART-NACK and ERROR. Operations are READ and
//! WRITE.

mod air;
mod expect;
mod frame;
mod rail;
mod setting;
mod stage;

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
    a_both_sides_see_the_error
    a_fin_ends_the_wait_for_a_restart
    a_fragment_comes_twice
    a_fragment_ends_the_wait_for_a_restart
    a_forgotten_peer_ends_what_both_were_doing
    a_forgotten_peer_ends_while_it_is_read
    a_late_write_finds_its_key_revoked
    a_rail_that_cannot_give_back_takes_its_peer_along
    a_restart_begins_with_the_first_byte
    a_restart_goes_on_with_what_is_missing
    a_restart_that_is_asked_for_waits_for_a_write
    a_restart_waits_for_a_read_under_way
    a_restart_waits_for_a_write_under_way
    all_rails_are_lost
    all_rails_are_lost_under_a_write
    an_announcement_of_the_cycle_before_comes_late
    an_eager_message_comes_twice
    b_fragments_are_given_back_but_arrived
    b_the_last_fragment_errs_but_arrived
    c_the_fin_errs_but_arrived
    d_the_notify_errs_but_arrived
    e_the_restart_ack_errs_but_arrived
    each_side_finds_another_rail_broken
    f_each_word_loses_its_rail
    g_the_announcement_errs_and_its_answer_came
    g_the_announcement_errs_before_its_answer
    g_the_announcement_of_exposed_memory_errs
    given_up_before_the_read_left
    given_up_before_the_write_left
    h_an_announcement_that_was_given_back_is_not_restarted
    h_the_receive_comes_in_the_middle
    h_unmatched_exposed_memory
    h_unmatched_fragments
    half_open
    immediate_data_are_those_of_the_turn_of_an_announcement
    immediate_data_err_with_their_rail_and_arrived
    i_the_request_is_recycled_while_a_notify_is_late
    j_three_hundred_restarts
    j_three_hundred_restarts_of_a_write
    second_rail_fails_during_the_handshake
    the_news_of_a_broken_rail_are_given_back
    the_news_of_a_broken_rail_come_after_its_return
    the_news_of_a_broken_rail_come_before_its_return_is_known
    the_news_of_a_broken_rail_come_while_it_returns
    the_news_of_a_broken_rail_come_with_its_return
    the_news_of_a_broken_rail_outlive_the_one_they_travel_over
    the_receiver_gives_up_while_its_read_is_under_way
    the_restarted_announcement_errs_but_arrived
    the_sender_gives_up_and_the_message_was_complete
    the_sender_gives_up_before_its_restart_is_answered
    the_sender_gives_up_while_its_write_is_under_way
    third_rail_fails_during_the_handshake
    who_was_away_counts_from_its_return
}

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stories");

fn tell(name: &str) {
    let file = format!("{}.story", name.replace('_', "-"));
    let script = std::fs::read_to_string(format!("{FOLDER}/{file}")).unwrap();
    stage::play(&file, &script);
}

#[test]
fn every_file_is_a_test() {
    let mut files: Vec<String> = std::fs::read_dir(FOLDER)
        .unwrap()
        .filter_map(|file| {
            let name = file.unwrap().file_name().into_string().unwrap();
            Some(name.strip_suffix(".story")?.replace('-', "_"))
        })
        .collect();
    files.sort();
    let mut told = TOLD.to_vec();
    told.sort_unstable();
    assert_eq!(told, files);
}
