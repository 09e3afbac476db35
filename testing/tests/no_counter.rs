//! Without the counting allocator installed a count panics, so that no test passes by counting nothing.
#![forbid(unsafe_code)]

#[test]
#[should_panic(expected = "is not this program's `#[global_allocator]`")]
fn a_program_without_the_allocator_panics() {
    doorbell_testing::alloc::of_thread();
}
