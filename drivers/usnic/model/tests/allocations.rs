//! Nothing is allocated for a frame, its completions and its interrupts: counted by the allocator itself, of
//! all threads.

mod client;

use client::scene::Scene;
use client::{CQ, model};
use doorbell_testing::alloc::{self, Counting};
use doorbell_vic::Trap;

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
            before = alloc::of_process().allocations;
        }
        scene.at_b.post(&mut scene.b, 1, 9300, 0);
        scene.at_a.send(&mut scene.a, &frames[round % 3]);
        scene.at_a.wait(&scene.a);
        assert!(scene.at_b.wait(&scene.b).is_eop());
    }
    let during = alloc::of_process().allocations - before;
    assert_eq!(during, 0, "in 300 frames");
    assert_eq!(model.summary().functions["vf1"].received, 400);
}
