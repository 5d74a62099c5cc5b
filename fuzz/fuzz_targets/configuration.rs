#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| durably_sim::fuzz::configuration(input));
