//! Nothing is allocated for a frame, its completions and its interrupts: counted by the allocator itself, of all threads.

mod client;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use client::scene::Scene;
use client::{CQ, model};
use doorbell_vic::Trap;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator unchanged; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `alloc` above, so from the system's allocator.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `at` came from `alloc` above, so from the system's allocator.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn frames_are_carried_without_allocation() {
    // The devcmd block alone is messages, so that frames need none.
    let (model, _folder) = model(|options| options.trap = Trap::Devcmd);
    let mut scene = Scene::new(&model, (64, 128));
    let _bell = scene.b.bell(1);
    let cq = scene.b.find(CQ, 1);
    scene.b.write32(cq + 0x50, 1);
    scene.b.write32(cq + 0x38, 1);
    let frames = [
        scene.frame(b"short"),
        scene.frame(&[7; 1400]),
        scene.frame(&[9; 9000]),
    ];
    let mut before = 0;
    for round in 0..400 {
        if round == 100 {
            before = ALLOCATIONS.load(Ordering::Relaxed);
        }
        scene.at_b.post(&mut scene.b, 1, 9300, 0);
        scene.at_a.send(&mut scene.a, &frames[round % 3]);
        scene.at_a.wait(&scene.a);
        assert!(scene.at_b.wait(&scene.b).is_eop());
    }
    let during = ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert_eq!(during, 0, "in 300 frames");
    assert_eq!(model.summary().functions["vf1"].received, 400);
}
