#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| doorbell_fuzz::acm_subnet::run(input));
