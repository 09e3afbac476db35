//! The user's interface, on threads over shm, in inline and in dedicated mode.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::{MODES, config, in_both_modes, job, pattern};
use doorbell::config::Protocol;
use doorbell::{Error, Source, Stride, Tag};

const SIZES: [usize; 8] = [0, 1, 8, 100, 5_000, 9_000, 70_000, 1_000_000];

#[test]
fn every_size_arrives_whole_by_every_protocol() {
    for mode in MODES {
        for protocol in [Protocol::Auto, Protocol::Fragments, Protocol::Get, Protocol::Put] {
            let mut config = config(mode);
            config.pml.protocol.set(protocol);
            job(2, &config, |world| {
                let other = 1 - world.rank();
                for (tag, size) in (0u64..).zip(SIZES) {
                    let mut into = vec![0; size + 3];
                    if world.rank() == 0 {
                        world.send(other, tag, &pattern(tag as u32, size)).unwrap();
                        let status = world.recv(other, tag, &mut into).unwrap();
                        assert_eq!((status.source, status.tag, status.len), (other, tag, size));
                    } else {
                        let status = world.recv(other, tag, &mut into).unwrap();
                        world.ssend(other, tag, &into[..status.len]).unwrap();
                    }
                    assert!(
                        into[..size] == pattern(tag as u32, size)[..] && into[size..] == [0; 3],
                        "{size} bytes"
                    );
                }
            });
        }
    }
}

#[test]
fn buffered_sends_return_before_a_receive() {
    const EACH: usize = 50_000;
    in_both_modes(2, |world| {
        if world.rank() == 0 {
            let mut data = vec![0; EACH];
            for tag in 0..10 {
                data.fill(tag as u8);
                world.bsend(1, tag, &data).unwrap();
            }
            let long = world.bsend(1, 0, &vec![0; 2 << 20]).unwrap_err();
            assert_eq!(long.code(), "layout", "{long}");
            world.send(1, 99, &[]).unwrap();
            world.recv(1, 99, &mut []).unwrap();
        } else {
            world.recv(0, 99, &mut []).unwrap();
            for tag in (0..10).rev() {
                let mut into = vec![9; EACH];
                world.recv(0, tag, &mut into).unwrap();
                assert!(into.iter().all(|byte| u64::from(*byte) == tag));
            }
            world.send(0, 99, &[]).unwrap();
        }
    });
}

#[test]
fn messages_with_checksums_pass_in_both_modes() {
    for mode in MODES {
        let mut config = config(mode);
        config.pml.checksum.set(true);
        job(2, &config, |world| {
            let other = 1 - world.rank();
            for size in [0, 8, 5000, 300_000] {
                let mut into = vec![0; size];
                world
                    .scope(|s| {
                        let receive = s.irecv(other, 5, &mut into)?;
                        let data = pattern(other, size).leak();
                        s.isend(other, 5, data)?.wait()?;
                        receive.wait()
                    })
                    .unwrap();
                assert!(into == pattern(world.rank(), size));
            }
        });
    }
}

#[test]
fn wildcards_match_by_tag_bits_and_from_any_rank() {
    in_both_modes(4, |world| {
        if world.rank() > 0 {
            world
                .send(0, 0x100 + u64::from(world.rank()), &world.rank().to_le_bytes())
                .unwrap();
            return;
        }
        let mut seen = [false; 4];
        for _ in 1..4 {
            let mut into = [0; 4];
            let status = world
                .recv(Source::Any, Tag::masked(0x100, 0xff), &mut into)
                .unwrap();
            assert_eq!(u32::from_le_bytes(into), status.source);
            assert_eq!(status.tag, 0x100 + u64::from(status.source));
            seen[status.source as usize] = true;
        }
        assert_eq!(seen, [false, true, true, true]);
    });
}

#[test]
fn messages_of_one_sender_and_tag_arrive_in_order() {
    in_both_modes(2, |world| {
        const COUNT: u32 = 3_000;
        if world.rank() == 0 {
            for n in 0..COUNT {
                // Sizes on both sides of every limit, so that later messages could overtake.
                let size = [8, 9_000, 100, 40_000][n as usize % 4];
                let mut data = vec![0; size];
                data[..4].copy_from_slice(&n.to_le_bytes());
                world.send(1, 1, &data).unwrap();
            }
        } else {
            let mut into = vec![0; 40_000];
            for n in 0..COUNT {
                world.recv(0, 1, &mut into).unwrap();
                assert_eq!(into[..4], n.to_le_bytes());
            }
        }
    });
}

#[test]
fn scopes_carry_many_requests_and_return_buffers() {
    in_both_modes(2, |world| {
        let other = 1 - world.rank();
        let out: Vec<Vec<u8>> = (0..20).map(|n| pattern(n, 1_000 * n as usize)).collect();
        let mut into: Vec<Vec<u8>> = out.iter().map(|data| vec![0; data.len()]).collect();
        let mut small = [0; 8];
        world
            .scope(|s| {
                let mut receives = Vec::new();
                for (tag, into) in (0u64..).zip(&mut into) {
                    receives.push(s.irecv(other, tag, into)?);
                }
                let mut sends = Vec::new();
                for (tag, data) in (0u64..).zip(&out) {
                    sends.push(s.isend(other, tag, data)?);
                }
                let mut left = receives.len();
                while let Some((at, status)) = world.wait_any(&mut receives)? {
                    assert_eq!((status.tag, status.len), (at as u64, out[at].len()));
                    left -= 1;
                }
                assert_eq!(left, 0);
                world.wait_all(&mut sends)?;
                assert!(sends.iter().all(|send| send.status().is_some()));
                // A buffer that was waited for can be used again inside the same scope.
                let mut buffer = &mut small[..];
                for round in 0..3u8 {
                    let receive = s.irecv(other, 100, buffer)?;
                    world.send(other, 100, &[round; 8])?;
                    let (status, back) = receive.wait_buffer()?;
                    assert_eq!((status.len, &back[..]), (8, &[round; 8][..]));
                    buffer = back;
                }
                Ok(())
            })
            .unwrap();
        assert_eq!(into, out);
    });
}

#[test]
fn dropped_and_forgotten_requests_are_waited_for() {
    in_both_modes(2, |world| {
        let other = 1 - world.rank();
        let out = pattern(7, 300_000);
        let (mut dropped, mut forgotten) = (vec![0; out.len()], vec![0; out.len()]);
        world
            .scope(|s| {
                drop(s.irecv(other, 1, &mut dropped)?);
                std::mem::forget(s.irecv(other, 2, &mut forgotten)?);
                std::mem::forget(s.isend(other, 1, &out)?);
                drop(s.isend(other, 2, &out)?);
                Ok(())
            })
            .unwrap();
        assert!(dropped == out && forgotten == out);
    });
}

#[test]
fn an_unmatched_receive_ends_with_its_scope_and_is_never_written_again() {
    in_both_modes(2, |world| {
        let other = 1 - world.rank();
        if world.rank() == 0 {
            let mut into = [0xaa; 64];
            let error = world.within(Duration::from_millis(50)).scope(|s| {
                std::mem::forget(s.irecv(other, 1, &mut into)?);
                Ok(())
            });
            assert_eq!(error.unwrap_err().code(), "timeout");
            world.send(other, 2, b"now").unwrap();
            // The late message of tag 1 is on its way or here; a new receive must get it, and not the old
            // one.
            let mut late = [0; 64];
            assert_eq!(world.recv(other, 1, &mut late).unwrap().len, 64);
            assert_eq!((into, late), ([0xaa; 64], [0x55; 64]));
        } else {
            world.recv(other, 2, &mut [0; 3]).unwrap();
            world.send(other, 1, &[0x55; 64]).unwrap();
        }
    });
}

#[test]
fn a_panic_in_a_scope_still_ends_its_requests() {
    in_both_modes(1, |world| {
        let mut into = [0; 8];
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = world
                .within(Duration::from_millis(30))
                .scope(|s| -> Result<(), Error> {
                    std::mem::forget(s.irecv(0, 1, &mut into)?);
                    panic!("in the middle");
                });
        }));
        assert_eq!(
            *panic.unwrap_err().downcast_ref::<&str>().unwrap(),
            "in the middle"
        );
        world.send(0, 1, &[1; 8]).unwrap();
        assert_eq!(into, [0; 8]);
        let mut fresh = [0; 8];
        world.recv(0, 1, &mut fresh).unwrap();
        assert_eq!(fresh, [1; 8]);
    });
}

#[test]
fn an_error_in_a_scope_comes_out_at_once_and_before_the_leftovers() {
    in_both_modes(1, |world| {
        world.send(0, 1, &[1; 100]).unwrap();
        let mut short = [0; 10];
        let error = world.scope(|s| s.irecv(0, 1, &mut short)?.wait()).unwrap_err();
        assert!(
            matches!(
                error,
                Error::Truncated {
                    length: 100,
                    capacity: 10,
                    tag: 1,
                    source_rank: 0
                }
            ),
            "{error}"
        );
        assert_eq!(short, [1; 10]);
    });
}

#[test]
fn layouts_gather_and_scatter() {
    in_both_modes(2, |world| {
        let other = 1 - world.rank();
        let data = pattern(3, 60_000);
        let every_third: Vec<u8> = data.chunks(30).flat_map(|chunk| chunk[..10].to_vec()).collect();
        let blocks = Stride {
            block: 10,
            stride: 30,
            count: 2_000,
        };
        let mut parts = [vec![0; 7], vec![0; 0], vec![0; 19_993]];
        let mut spread = vec![0; 60_000];
        world
            .scope(|s| {
                let mut requests = vec![
                    s.irecv_parts(other, 1, parts.iter_mut().map(Vec::as_mut_slice))?,
                    s.irecv_strided(other, 2, &mut spread, blocks)?,
                    s.isend_strided(other, 1, &data, blocks)?,
                    s.isend_parts(other, 2, [&every_third[..100], &[], &every_third[100..]])?,
                ];
                world.wait_all(&mut requests)
            })
            .unwrap();
        assert!(parts.concat() == every_third);
        assert!(
            spread
                .chunks(30)
                .flat_map(|chunk| chunk[..10].to_vec())
                .eq(every_third.iter().copied())
        );
        assert!(spread.chunks(30).all(|chunk| chunk[10..] == [0; 20]));
        let overlapping = Stride {
            block: 30,
            stride: 10,
            count: 3,
        };
        let error = world
            .scope(|s| s.isend_strided(other, 3, &data, overlapping).map(drop))
            .unwrap_err();
        assert_eq!(error.code(), "layout");
    });
}

#[test]
fn regions_travel_outside_scopes_and_outlive_their_handles() {
    in_both_modes(2, |world| {
        let other = 1 - world.rank();
        let data = pattern(world.rank(), 500_000);
        let region = world.region(1_000_000).unwrap();
        region.write(0, &data);
        let receive = world
            .irecv_region(other, 1, region.slice(500_000, 500_000).unwrap())
            .unwrap();
        // The handle is dropped at once; the request and the memory stay.
        drop(
            world
                .isend_region(other, 1, region.slice(0, 500_000).unwrap())
                .unwrap(),
        );
        assert_eq!(receive.wait().unwrap().len, 500_000);
        let mut back = vec![0; 500_000];
        region.read(500_000, &mut back);
        assert!(back == pattern(other, 500_000));
        world
            .issend_region(other, 2, region.slice(0, 8).unwrap())
            .map(drop)
            .unwrap();
        world.recv(other, 2, &mut [0; 8]).unwrap();
        drop(region);
        world.barrier().unwrap();
    });
}

#[test]
fn probes_see_and_matched_probes_take() {
    in_both_modes(2, |world| {
        if world.rank() == 1 {
            world.send(0, 5, &[5; 50]).unwrap();
            world.send(0, 6, &pattern(6, 60_000)).unwrap();
            world.send(0, 7, b"to be thrown away").unwrap();
            world.send(0, 7, b"kept").unwrap();
            world.barrier().unwrap();
            return;
        }
        assert!(world.iprobe(1, 99).unwrap().is_none());
        let status = world.probe(Source::Any, 5).unwrap();
        assert_eq!((status.source, status.len), (1, 50));
        let message = world.mprobe(1, 6).unwrap();
        assert_eq!(message.status().len, 60_000);
        assert!(
            world.iprobe(1, 6).unwrap().is_none(),
            "no other receive gets a claimed message"
        );
        world.recv(1, 5, &mut [0; 50]).unwrap();
        let mut into = vec![0; 60_000];
        message.recv(&mut into).unwrap();
        assert!(into == pattern(6, 60_000));
        drop(world.mprobe(1, 7).unwrap());
        let mut into = [0; 32];
        let status = world.recv(1, 7, &mut into).unwrap();
        assert_eq!(&into[..status.len], b"kept");
        assert!(world.improbe(1, 7).unwrap().is_none());
        let error = world.within(Duration::from_millis(20)).probe(1, 8).unwrap_err();
        assert_eq!(error.code(), "timeout");
        world.barrier().unwrap();
        // Rank 1 leaves now, and sends nothing more.
        let error = world.probe(1, 8).unwrap_err();
        assert_eq!(error.code(), "peer.lost");
    });
}

#[test]
fn receives_can_be_cancelled_until_they_match() {
    in_both_modes(1, |world| {
        let mut into = [0; 8];
        world
            .scope(|s| {
                let mut receive = s.irecv(0, 1, &mut into)?;
                assert!(receive.cancel());
                assert!(matches!(receive.wait(), Err(Error::Cancelled)));
                Ok(())
            })
            .unwrap();
        world.send(0, 1, b"is kept!").unwrap();
        world
            .scope(|s| {
                let mut receive = s.irecv(0, 1, &mut into)?;
                while !receive.is_done() {
                    world.progress();
                }
                assert!(!receive.cancel());
                assert_eq!(receive.test().unwrap()?.len, 8);
                assert_eq!(receive.status().unwrap().len, 8);
                Ok(())
            })
            .unwrap();
        assert_eq!(&into, b"is kept!");
    });
}

#[test]
fn collectives_agree_for_every_size_and_root() {
    for mode in MODES {
        for size in 1..=7 {
            job(size, &config(mode), |world| {
                let (rank, size) = (world.rank(), world.size());
                for root in 0..size {
                    let mut data = if rank == root {
                        pattern(root, 20_000)
                    } else {
                        vec![0; 20_000]
                    };
                    world.broadcast(root, &mut data).unwrap();
                    assert!(data == pattern(root, 20_000));
                }
                for length in [0, 1, 3_000] {
                    let mut all = vec![0; length * size as usize];
                    world.allgather(&pattern(rank, length), &mut all).unwrap();
                    let expected: Vec<u8> = (0..size).flat_map(|rank| pattern(rank, length)).collect();
                    assert!(all == expected, "allgather of {length} among {size}");
                }
                assert_eq!(world.allgather(&[1, 2], &mut [0]).unwrap_err().code(), "layout");
                assert!(matches!(
                    world.broadcast(size, &mut []),
                    Err(Error::NoSuchRank { .. })
                ));
                // A collective cannot take the user's own messages, nor the other way round.
                world.send(rank, 1 << 32, b"mine").unwrap();
                world.barrier().unwrap();
                world.recv(rank, 1 << 32, &mut [0; 4]).unwrap();
            });
        }
    }
}

#[test]
fn no_rank_leaves_a_barrier_before_the_last_has_entered() {
    for mode in MODES {
        let entered = AtomicU32::new(0);
        job(5, &config(mode), |world| {
            for round in 1..=20 {
                if world.rank() == round % 5 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                entered.fetch_add(1, Ordering::SeqCst);
                world.barrier().unwrap();
                assert!(entered.load(Ordering::SeqCst) >= 5 * round);
                world.barrier().unwrap();
            }
        });
    }
}

#[test]
fn a_timeout_names_the_ranks_the_call_and_the_state_of_the_peer() {
    in_both_modes(2, |world| {
        if world.rank() == 0 {
            let started = Instant::now();
            let error = world
                .within(Duration::from_millis(80))
                .recv(1, 42, &mut [0; 8])
                .unwrap_err();
            assert!(started.elapsed() < Duration::from_secs(5));
            let text = error.to_string();
            assert!(
                text.contains("rank 0") && text.contains("rank 1") && text.contains("tag 0x2a"),
                "{text}"
            );
            assert!(text.contains("shm up"), "{text}");
            // The buffer is back and the receive is gone: the message that arrives now is matched by the next
            // receive.
            world.send(1, 1, b"go").unwrap();
            world.recv(1, 42, &mut [0; 8]).unwrap();
        } else {
            world.recv(0, 1, &mut [0; 2]).unwrap();
            world.send(0, 42, &[0; 8]).unwrap();
        }
    });
}

#[test]
fn a_wait_for_all_returns_the_first_error_and_the_others_go_on() {
    in_both_modes(2, |world| {
        let other = 1 - world.rank();
        let (mut first, mut short, mut last) = ([0; 4], [0; 2], [0; 4]);
        let outcome = world.scope(|s| {
            let mut requests = vec![
                s.irecv(other, 1, &mut first)?,
                s.irecv(other, 2, &mut short)?,
                s.irecv(other, 3, &mut last)?,
            ];
            for tag in 1..=3 {
                world.send(other, tag, &[tag as u8; 4])?;
            }
            let error = world.wait_all(&mut requests).unwrap_err();
            let ends: Vec<_> = requests
                .iter()
                .map(|request| request.status().map(|status| status.len))
                .collect();
            // An error is returned once.
            assert!(world.wait_all(&mut requests).is_ok());
            Ok((error.code(), ends))
        });
        assert_eq!(
            outcome.unwrap(),
            ("message.truncated", vec![Some(4), None, Some(4)])
        );
        assert_eq!((first, short, last), ([1; 4], [2; 2], [3; 4]));

        // A deadline that passes does not take the outcome of a request that has failed.
        let mut never = [0; 4];
        world.send(other, 4, &[4; 4]).unwrap();
        world.barrier().unwrap();
        let outcome = world.scope(|s| {
            let mut requests = vec![s.irecv(other, 4, &mut short)?, s.irecv(other, 5, &mut never)?];
            let late = world
                .within(Duration::from_millis(50))
                .wait_all(&mut requests)
                .unwrap_err();
            let bad = requests[0].test().unwrap().unwrap_err();
            assert!(requests[1].cancel() && requests.remove(1).wait().is_err());
            Ok((late.code(), bad.code()))
        });
        assert_eq!(outcome.unwrap(), ("timeout", "message.truncated"));
        world.barrier().unwrap();
    });
}

#[test]
fn a_timeout_of_several_requests_names_their_peers_and_the_state_of_their_rails() {
    in_both_modes(3, |world| {
        if world.rank() != 0 {
            world.recv(0, 1, &mut [0; 2]).unwrap();
            return;
        }
        let soon = world.within(Duration::from_millis(80));
        let region = world.region(8).unwrap();
        let receive = |from: Source| world.irecv_region(from, 42, region.whole()).unwrap();
        let mut two = [receive(Source::Rank(2)), receive(Source::Rank(1))];
        let mut any = [receive(Source::Any)];
        let texts = [
            soon.wait_any(&mut two).unwrap_err().to_string(),
            soon.wait_all(&mut two).unwrap_err().to_string(),
            soon.wait_all(&mut any).unwrap_err().to_string(),
        ];
        for text in &texts[..2] {
            assert!(text.contains("one of 2 requests with ranks 2 and 1; "), "{text}");
            assert!(text.contains("; rank 2 over shm up"), "{text}");
            assert!(text.contains("; rank 1 over shm up"), "{text}");
        }
        assert!(
            texts[2].contains("one of 1 requests; no peer is known to be lost, nor a rail to be down"),
            "{}",
            texts[2]
        );
        for mut request in two.into_iter().chain(any) {
            assert!(request.cancel());
        }
        for rank in [1, 2] {
            world.send(rank, 1, b"go").unwrap();
        }
    });
}

#[test]
fn a_quiet_wait_is_reported_once() {
    for mode in MODES {
        let calls = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&calls);
        let world = doorbell::Builder::new()
            .without_environment()
            .configure(move |config| {
                config.progress.mode.set(mode);
                config.wait.quiet.set(Duration::from_millis(30));
                config.wait.deadline.set(Duration::from_millis(200));
            })
            .on_quiet(move |waiting| {
                assert!(
                    waiting
                        .to_string()
                        .contains("a message from any rank with any tag"),
                    "{waiting}"
                );
                counter.fetch_add(1, Ordering::SeqCst);
            })
            .build()
            .unwrap();
        assert_eq!(
            world.recv(Source::Any, Tag::any(), &mut []).unwrap_err().code(),
            "timeout"
        );
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn ranks_that_do_not_exist_are_named() {
    in_both_modes(1, |world| {
        for rank in [1, u32::MAX] {
            assert!(matches!(
                world.send(rank, 0, b""),
                Err(Error::NoSuchRank { size: 1, .. })
            ));
            assert!(matches!(
                world.recv(rank, 0, &mut []),
                Err(Error::NoSuchRank { size: 1, .. })
            ));
        }
        assert!(world.peer(1).is_none() && world.selection(1).is_none());
    });
}

#[test]
fn a_rank_that_leaves_in_order_is_lost_to_a_later_wait_but_its_messages_arrive() {
    in_both_modes(2, |world| {
        if world.rank() == 0 {
            for n in 0..50u8 {
                world.send(1, u64::from(n), &[n; 5_000]).unwrap();
            }
            return;
        }
        // Long enough for rank 0 to have ended: its messages must still arrive.
        std::thread::sleep(Duration::from_millis(100));
        for n in 0..50u8 {
            let mut into = [0; 5_000];
            world.recv(0, u64::from(n), &mut into).unwrap();
            assert_eq!(into, [n; 5_000]);
        }
        let started = Instant::now();
        let error = world.recv(0, 99, &mut []).unwrap_err();
        assert!(matches!(&error, Error::PeerLost { peer: 0, .. }), "{error}");
        assert!(started.elapsed() < Duration::from_secs(2));
        assert!(world.peer(0).unwrap().lost.is_some());
    });
}

#[test]
fn a_world_may_be_moved_between_threads() {
    in_both_modes(1, |world| {
        world.send(0, 1, b"before").unwrap();
        std::thread::spawn(move || world.recv(0, 1, &mut [0; 6]).unwrap())
            .join()
            .unwrap();
    });
}

#[test]
fn more_requests_than_the_mailbox_has_room_for() {
    for mode in MODES {
        let mut config = config(mode);
        config.progress.mailbox.set(2);
        job(2, &config, |world| {
            let other = 1 - world.rank();
            let out = [7; 64];
            let mut into = vec![[0; 64]; 2_000];
            world
                .scope(|s| {
                    for (tag, into) in (0u64..).zip(&mut into) {
                        drop(s.irecv(other, tag, into)?);
                    }
                    for tag in 0..2_000 {
                        drop(s.isend(other, tag, &out)?);
                    }
                    Ok(())
                })
                .unwrap();
            assert!(into.iter().all(|one| *one == out));
        });
    }
}

#[test]
fn discovery_and_selection_keep_their_reasons() {
    job(2, &config(MODES[0]), |world| {
        let other = 1 - world.rank();
        let chosen: Vec<String> = world
            .selection(other)
            .unwrap()
            .chosen()
            .map(|(rail, _)| rail.to_string())
            .collect();
        assert_eq!(chosen, ["shm"]);
        let peer = world.peer(other).unwrap();
        assert_eq!((peer.pid, peer.lost.as_deref()), (std::process::id(), None));
        assert_eq!(
            (peer.rails.len(), peer.rails[0].name.as_str(), peer.rails[0].up),
            (1, "shm", true)
        );
        world.barrier().unwrap();
    });
}
