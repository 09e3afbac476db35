//! Counters of sends and receives.

use libfabric_sys::*;

use crate::client::{Client, Room, Wait, Wants, counter, pattern, pointer, until};
use crate::pair::run;

#[test]
fn sends_injects_and_receives_count_and_failures_count_apart() {
    run(
        "counters::sends_injects_and_receives_count_and_failures_count_apart",
        |mut role, library| {
            let wants = Wants {
                counters: true,
                selective: true,
                wait: FI_WAIT_UNSPEC,
                ..Wants::default()
            };
            let client = Client::meet(&mut role, library, &wants);
            let [sent, received] =
                [&client.sent, &client.received].map(|counter| counter.as_ref().unwrap().0);
            let bytes = pattern(3000, 1);
            if role.is_first() {
                client.post(&bytes, None, 1);
                // SAFETY: the memory is used during the call.
                client.retry(|| unsafe {
                    fi_inject(client.endpoint.0, bytes.as_ptr().cast(), 3000, client.peer)
                });
                until("the sends do not count", || {
                    // SAFETY: the counter is open.
                    let count = unsafe { fi_cntr_read(sent) };
                    (count == 2).then_some(())
                });
                role.meet(&client);
            } else {
                let mut rooms = [Room::new(3000), Room::new(3000)];
                rooms
                    .iter_mut()
                    .for_each(|room| client.receive(room, None, FI_ADDR_UNSPEC, 2));
                // SAFETY: the counter is open.
                assert_eq!(unsafe { fi_cntr_wait(received, 2, 60_000) }, 0);
                assert!(rooms.iter().all(|room| room.bytes() == bytes));
                assert!(client.read().is_none(), "no entry is wanted");
                // SAFETY: as above.
                assert_eq!(unsafe { fi_cntr_wait(received, 3, 20) }, -FI_ETIMEDOUT);
                client.receive(&mut rooms[0], None, FI_ADDR_UNSPEC, 3);
                // SAFETY: as above.
                unsafe { fi_cancel(client.endpoint.0.cast(), pointer(3)) };
                until("the failure does not count", || {
                    // SAFETY: the counter is open.
                    let count = unsafe { fi_cntr_readerr(received) };
                    (count == 1).then_some(())
                });
                assert_eq!(client.next().failure().err, FI_ECANCELED);
                role.meet(&client);
            }
        },
    );
}

#[test]
fn counters_are_changed_by_hand() {
    run("counters::counters_are_changed_by_hand", |_, library| {
        let client = Client::open(library, &Wants::default());
        let counter = counter(&client.domain, Wait::on(FI_WAIT_UNSPEC));
        // SAFETY: the counter is open.
        unsafe {
            assert_eq!(fi_cntr_set(counter.0, 10), 0);
            assert_eq!(fi_cntr_add(counter.0, 5), 0);
            assert_eq!(fi_cntr_read(counter.0), 15);
            assert_eq!(fi_cntr_seterr(counter.0, 3), 0);
            assert_eq!(fi_cntr_adderr(counter.0, 1), 0);
            assert_eq!(fi_cntr_readerr(counter.0), 4);
            assert_eq!(fi_cntr_wait(counter.0, 15, 0), 0);
            assert_eq!(fi_cntr_wait(counter.0, 16, 0), -FI_ETIMEDOUT);
        }
    });
}
