//! Refusals of the kernel, and the messages on them.

use super::*;

#[test]
fn a_user_who_may_not_sample_the_kernel_samples_the_rest() {
    let fake = Fake::refusing(|_, request| request.kernel.then_some(libc::EACCES));
    let asked = fake.asked.clone();
    let outcome = start(fake, &time(), 10_000).unwrap().finish().unwrap();
    assert!(asked.borrow().opened.iter().all(|(_, request)| !request.kernel));
    assert_eq!(asked.borrow().opened.len(), 2);
    assert!(outcome.notes().iter().any(|note| note.contains("user mode only")));
}

#[test]
fn a_kernel_that_forbids_gets_a_message_with_its_setting_and_the_remedy() {
    for refusal in
        [(|_, _| Some(libc::EACCES)) as fn(u16, &Request) -> Option<i32>, |_, _| Some(libc::EPERM)]
    {
        let Err(error) = start(Fake::refusing(refusal), &time(), 10_000) else {
            panic!("it was not forbidden");
        };
        let paranoid = match &error {
            Error::Forbidden { setting, .. } => setting.paranoid,
            _ => panic!("{error:?}"),
        };
        assert_eq!(paranoid, Some(4));
        let message = error.to_string();
        for part in ["perf_event_paranoid is 4", "sysctl kernel.perf_event_paranoid=2"] {
            assert!(message.contains(part), "{message}");
        }
    }
}

#[test]
fn a_kernel_whose_level_allows_sampling_is_not_advised_to_lower_it() {
    let mut fake = Fake::refusing(|_, _| Some(libc::EPERM));
    fake.setting = Setting { paranoid: Some(2), filtered: true, ..Setting::default() };
    let Err(error) = start(fake, &time(), 10_000) else { panic!("it was not forbidden") };
    let message = error.to_string();
    assert!(message.contains("is 2, which allows it"), "{message}");
    assert!(message.contains("seccomp"), "{message}");
    assert!(!message.contains("sysctl"), "{message}");
}

/// mmap(2) of a ring buffer fails with EPERM too.
#[test]
fn a_limit_on_locked_memory_is_not_taken_for_a_kernel_that_forbids_sampling() {
    let mut fake = Fake::new([]);
    fake.has_memory = false;
    let Err(error) = start(fake, &time(), 10_000) else { panic!("there was memory") };
    let message = error.to_string();
    assert!(message.contains("perf_event_mlock_kb"), "{message}");
    assert!(!message.contains("paranoid"), "{message}");
}

#[test]
fn a_kernel_without_a_pmu_says_so_of_a_counter() {
    let refusal =
        |_, request: &Request| matches!(request.event, Event::Raw(_)).then_some(libc::ENOENT);
    let source = intel().find("TotalCycles").unwrap();
    let Err(error) = start(Fake::refusing(refusal), &source, 65_536) else {
        panic!("there was a counter");
    };
    assert!(matches!(error, Error::NoCounter { source: "ProfileTotalCycles", .. }), "{error:?}");
    assert!(start(Fake::refusing(refusal), &time(), 10_000).is_ok());
}

#[test]
fn an_event_that_opens_on_one_processor_alone_is_closed_again() {
    let fake = Fake::refusing(|processor, _| (processor == 65).then_some(libc::EMFILE));
    let asked = fake.asked.clone();
    let Err(error) = start(fake, &time(), 10_000) else {
        panic!("it was not refused");
    };
    assert!(matches!(error, Error::Perf(_)), "{error:?}");
    assert_eq!(asked.borrow().closed, [0]);
}
