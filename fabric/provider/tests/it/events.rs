//! Counters of what peers do (`FI_RMA_EVENT`): of endpoints and of registrations.

use libfabric_sys::*;

use crate::atomic::add;
use crate::client::{Client, Object, Room, Wait, Wants, bind, counter, pattern};
use crate::pair::run;
use crate::rma::{Calls, KEY, expose};

fn wants() -> Wants {
    Wants {
        caps: FI_MSG | FI_RMA | FI_ATOMIC | FI_RMA_EVENT,
        ..Wants::default()
    }
}

/// Binds a registration to a counter.
fn watch(registration: &Object<fid_mr>, counter: &Object<fid_cntr>, flags: u64) -> i32 {
    // SAFETY: both are open.
    unsafe { fi_mr_bind(registration.0, counter.0.cast(), flags) }
}

fn value(counter: &Object<fid_cntr>) -> u64 {
    // SAFETY: the counter is open.
    unsafe { fi_cntr_read(counter.0) }
}

fn wait_for(counter: &Object<fid_cntr>, count: u64) {
    // SAFETY: as above.
    assert_eq!(unsafe { fi_cntr_wait(counter.0, count, 60_000) }, 0, "{count}");
}

#[test]
fn what_peers_do_counts_where_it_is_done_and_what_fails_does_not() {
    let test = "events::what_peers_do_counts_where_it_is_done_and_what_fails_does_not";
    run(test, |mut role, library| {
        let client = Client::meet(&mut role, library, &wants());
        let open = || counter(&client.domain, Wait::on(FI_WAIT_UNSPEC));
        let of_endpoint = [FI_REMOTE_READ, FI_REMOTE_WRITE].map(|flag| {
            let counter = open();
            bind(&client.endpoint, counter.0.cast(), flag);
            counter
        });
        let [reads, writes, other] = [(); 3].map(|()| open());
        let mut rooms = [(); 3].map(|()| Room::new(1 << 20));
        let [one, two, three] = &mut rooms;
        let registrations = [expose(&client, one, KEY), expose(&client, two, 5)];
        let _unwatched = expose(&client, three, 6);
        assert_eq!(watch(&registrations[0], &reads, FI_REMOTE_READ), 0);
        assert_eq!(watch(&registrations[0], &writes, FI_REMOTE_WRITE), 0);
        assert_eq!(
            watch(&registrations[1], &other, FI_REMOTE_READ | FI_REMOTE_WRITE),
            0
        );
        role.meet(&client);
        if role.is_first() {
            let calls = |key| Calls {
                client: &client,
                peer: client.peer,
                addr: 0,
                key,
            };
            let (short, long) = (pattern(8, 1), pattern(1 << 20, 2));
            for key in [KEY, 5, 6] {
                for bytes in [&short, &long] {
                    calls(key).write_by("write", bytes);
                    // By three calls.
                    calls(key).expect(bytes);
                }
            }
            calls(KEY).write_by("writedata", &short);
            calls(KEY).write_by("inject", &short);
            add(&client, client.peer, 0, 1);
            // Outside of it, and by a key of none.
            for (key, at) in [(KEY, 1 << 20), (99, 0)] {
                client.retry(|| calls(key).try_write(&short, at));
                client.next().failure();
                let mut room = Room::new(8);
                client.retry(|| calls(key).try_read(&mut room, at));
                client.next().failure();
            }
            role.meet(&client);
        } else {
            wait_for(&reads, 7);
            wait_for(&writes, 5);
            wait_for(&other, 8);
            role.meet(&client);
            assert_eq!([&reads, &writes, &other].map(value), [7, 5, 8]);
            assert_eq!(of_endpoint.each_ref().map(value), [19, 8]);
        }
        drop(client.endpoint);
    });
}

#[test]
fn counters_of_bytes_and_those_of_oneself() {
    run("events::counters_of_bytes_and_those_of_oneself", |_, library| {
        let client = Client::open(library, &wants());
        let mut attr = fi_cntr_attr {
            events: FI_CNTR_EVENTS_BYTES,
            wait_obj: FI_WAIT_NONE,
            ..Layout::zeroed()
        };
        // SAFETY: the domain is open.
        let bytes = crate::client::opened("fi_cntr_open", |to| unsafe {
            fi_cntr_open(client.domain.0, &mut attr, to, std::ptr::null_mut())
        });
        let mut room = Room::new(1 << 20);
        let registration = expose(&client, &mut room, KEY);
        assert_eq!(watch(&registration, &bytes, FI_REMOTE_WRITE), 0);
        let me = client.insert(&client.name());
        let calls = Calls {
            client: &client,
            peer: me,
            addr: 0,
            key: KEY,
        };
        calls.write_by("write", &pattern(1000, 1));
        calls.write_by("writemsg", &pattern(100_000, 1));
        add(&client, me, 0, 1);
        assert_eq!(value(&bytes), 101_008);
    });
}

#[test]
fn what_is_bound_stays_open_and_one_counter_is_bound_for_each_kind() {
    let test = "events::what_is_bound_stays_open_and_one_counter_is_bound_for_each_kind";
    run(test, |_, library| {
        let client = Client::open(library, &wants());
        let [one, two] = [(); 2].map(|()| counter(&client.domain, Wait::on(FI_WAIT_NONE)));
        let mut room = Room::new(64);
        let registration = expose(&client, &mut room, KEY);
        for (flags, answer) in [
            (0, -FI_EINVAL),
            (FI_REMOTE_WRITE | FI_READ, -FI_EBADFLAGS),
            (FI_REMOTE_WRITE, 0),
            (FI_REMOTE_WRITE | FI_REMOTE_READ, -FI_EINVAL),
            (FI_REMOTE_READ, 0),
        ] {
            assert_eq!(watch(&registration, &one, flags), answer, "{flags:#x}");
        }
        // SAFETY: the counter is open, and stays so.
        assert_eq!(unsafe { fi_close(one.0.cast()) }, -FI_EBUSY);
        // SAFETY: both are open.
        let again = |flags| unsafe { fi_ep_bind(client.endpoint.0, two.0.cast(), flags) };
        assert_eq!(again(FI_REMOTE_WRITE), 0);
        assert_eq!(again(FI_REMOTE_WRITE | FI_REMOTE_READ), -FI_EINVAL);
        drop(registration);
        // A registration without counters has nothing of one that had some.
        let _next = expose(&client, &mut room, KEY);
        let me = client.insert(&client.name());
        add(&client, me, 0, 1);
        assert_eq!(
            (value(&one), value(&two)),
            (0, 0),
            "an addition that fetches is a read"
        );
        drop(one);
        drop(client.endpoint);
    });
}

/// Without the capability the counter of an endpoint stays where it is.
#[test]
fn an_endpoint_without_events_counts_none() {
    run("events::an_endpoint_without_events_counts_none", |_, library| {
        let caps = FI_MSG | FI_RMA | FI_ATOMIC;
        let client = Client::open(library, &Wants { caps, ..wants() });
        let reads = counter(&client.domain, Wait::on(FI_WAIT_NONE));
        bind(&client.endpoint, reads.0.cast(), FI_REMOTE_READ);
        let mut room = Room::new(64);
        let _registration = expose(&client, &mut room, KEY);
        let me = client.insert(&client.name());
        add(&client, me, 0, 1);
        assert_eq!(value(&reads), 0);
        drop(client.endpoint);
    });
}
