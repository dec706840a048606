//! Objects that a handle keeps alive, the services that start and stop them, and the listing of started objects.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use pmu_core::frame::{InterruptFrame, ProcessId, ProcessorNumber};
use pmu_core::profile::{InterfaceError, KProfileSource, NtStatus};
use pmu_kprofile::bucket::Bucket;
use pmu_kprofile::owned::{Handle, StoppingOwned};
use pmu_kprofile::{
    Affinity, BasicProfile, ListedProfile, ProfileError, ProfileHardware, ProfileObject, Profiles,
    Rules,
};
use pmu_tests::kprofile::{
    FAULT, Frame, Machine, Nothing, active, buffer, everywhere, leak, object, on, process,
    processor, request, source,
};

type Lists = Profiles<4, 128>;

fn owned(machine: &Machine) -> Arc<ProfileObject<'static>> {
    Arc::new(object(request(buffer(1)), machine))
}

#[test]
fn an_owned_object_is_started_and_stopped_without_waiting() {
    let (lists, mut machine) = (Lists::new(), Machine::new(active()));
    let handle = owned(&machine);
    let started = lists.try_start_owned(handle.clone(), &mut machine).unwrap();
    assert!(started.object().is_started());
    assert_eq!(lists.timer_interrupt(&Frame::at(0x1000)).hits, 1);
    let (error, again) = lists.try_start_owned(handle, &mut machine).unwrap_err();
    assert_eq!((error, Arc::strong_count(&again)), (ProfileError::AlreadyStarted, 2));
    machine.in_interrupt = true;
    let (error, started) = started.try_stop(&mut machine).unwrap_err();
    assert_eq!((error, started.object().is_started()), (ProfileError::WrongContext, true));
    machine.in_interrupt = false;
    machine.refuses_stop = Affinity::of(processor(1, 0));
    let stopping = started.try_stop(&mut machine).unwrap();
    assert!(format!("{stopping:?}").contains("started: false"), "{stopping:?}");
    let (handle, outcome) = stopping.try_finish().unwrap();
    let expected = ProfileError::Hardware { processor: processor(1, 0), error: FAULT };
    assert_eq!((Arc::strong_count(&handle), outcome), (2, Err(expected)));
}

#[test]
fn a_handle_comes_back_when_no_dispatch_reads_the_object_any_more() {
    let (lists, machine) = (leak(Lists::new()), Mutex::new(Machine::new(active())));
    let handle = owned(&machine.lock().unwrap());
    let started = lists.try_start_owned(handle.clone(), &mut *machine.lock().unwrap()).unwrap();
    let (started, stopping) = (Mutex::new(Some(started)), Mutex::new(None));
    let callback = |_: &dyn InterruptFrame, _: KProfileSource| {
        let token = started.lock().unwrap().take().unwrap();
        let token = token.try_stop(&mut *machine.lock().unwrap()).unwrap();
        // This dispatch, on another processor, began before the stop.
        let token = StoppingOwned::try_finish(token).unwrap_err();
        *stopping.lock().unwrap() = Some(token);
    };
    let caller = ProfileObject::callback(Rules::LATEST, source(2), &callback).unwrap();
    // SAFETY: the object lives until it is stopped below.
    unsafe { lists.start_borrowed(&caller, &mut *machine.lock().unwrap()) }.unwrap();
    lists.update_processors(&mut *machine.lock().unwrap()).unwrap();
    lists.interrupt(&Frame { processor: processor(0, 1), ..Frame::at(0) }, source(2));
    let token = stopping.lock().unwrap().take().unwrap();
    let (again, outcome) = token.try_finish().unwrap();
    assert_eq!((Arc::ptr_eq(&again, &handle), outcome), (true, Ok(())));
    lists.stop(&caller, &mut *machine.lock().unwrap()).unwrap();
}

#[test]
fn dropping_what_holds_a_handle_leaks_it() {
    let (lists, mut machine) = (Lists::new(), Machine::new(active()));
    let handle = owned(&machine);
    drop(lists.try_start_owned(handle.clone(), &mut machine).unwrap());
    assert!(handle.is_started());
    assert_eq!(Arc::strong_count(&handle), 2);
    lists.stop(&handle, &mut machine).unwrap();
    let started = lists.try_start_owned(handle.clone(), &mut machine).unwrap();
    drop(started.try_stop(&mut machine).unwrap());
    assert_eq!((Arc::strong_count(&handle), handle.is_started()), (3, false));
}

#[test]
fn an_object_that_another_holder_stopped_gives_its_handle_back() {
    let (lists, mut machine) = (Lists::new(), Machine::new(active()));
    let handle = owned(&machine);
    let started = lists.try_start_owned(handle.clone(), &mut machine).unwrap();
    lists.stop(&handle, &mut machine).unwrap();
    let (_, outcome) = started.try_stop(&mut machine).unwrap().try_finish().unwrap();
    assert_eq!(outcome, Ok(()));
    let started = lists.try_start_owned(handle.clone(), &mut machine).unwrap();
    lists.stop(&handle, &mut machine).unwrap();
    assert_eq!(started.stop(&mut machine).unwrap().1, Ok(()));
    assert_eq!(Arc::strong_count(&handle), 1);
}

/// A handle of an embedder's, which records that it was dropped.
#[derive(Debug)]
struct Told(Box<ProfileObject<'static>>, &'static AtomicBool);

impl core::ops::Deref for Told {
    type Target = ProfileObject<'static>;
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
    }
}

// SAFETY: the box owns the object, which does not move with it.
unsafe impl Handle for Told {}

#[test]
fn a_handle_of_the_embedders_own_ends_after_the_stop() {
    let (lists, mut machine) = (Lists::new(), Machine::new(active()));
    let ended = leak(AtomicBool::new(false));
    let told = Told(Box::new(object(request(buffer(1)), &machine)), ended);
    let started = lists.try_start_owned(told, &mut machine).unwrap();
    let stopped = started.try_stop(&mut machine).unwrap().try_finish().unwrap();
    assert!(!ended.load(Ordering::Relaxed));
    drop(stopped);
    assert!(ended.load(Ordering::Relaxed));
}

/// Checks the order of `NtStartProfile`: the handle, the profile's state, the limit, the buffer.
#[test]
fn the_start_service_answers_in_windows_order() {
    let (lists, mut machine) = (Profiles::<1, 128>::new(), Machine::new(active()));
    let (handle, other) = (owned(&machine), owned(&machine));
    let locked = Err(NtStatus::INSUFFICIENT_RESOURCES);
    let mut status = |object: Result<_, NtStatus>, resources| {
        let error = lists.try_start_service(object, resources, &mut machine).err();
        error.map(|(error, _)| error.status().unwrap().value())
    };
    let denied: Result<Arc<_>, _> = Err(NtStatus::ACCESS_DENIED);
    assert_eq!(status(denied, locked), Some(0xC000_0022));
    assert_eq!(status(Ok(handle.clone()), locked), Some(0xC000_009A));
    assert!(!handle.is_started());
    assert_eq!(status(Ok(handle.clone()), Ok(())), None);
    assert_eq!(status(Ok(handle.clone()), locked), Some(0xC000_00B8));
    assert_eq!(status(Ok(other), locked), Some(0xC000_00D3));
}

#[test]
fn the_stop_service_answers_as_windows() {
    let (lists, mut machine) = (Lists::new(), Machine::new(active()));
    let handle = owned(&machine);
    let mut status = |object: Result<&_, NtStatus>| {
        let error = lists.try_stop_service(object, &mut machine).err();
        error.map(|error| error.status().unwrap().value())
    };
    assert_eq!(status(Err(NtStatus::ACCESS_DENIED)), Some(0xC000_0022));
    assert_eq!(status(Ok(&handle)), Some(0xC000_00B7));
    drop(lists.try_start_owned(handle.clone(), &mut Machine::new(active())).unwrap());
    let mut machine = Machine::new(Affinity::EMPTY);
    let stopping = lists.try_stop_service(Ok(&handle), &mut machine).unwrap();
    assert!(stopping.is_over());
}

#[test]
fn a_listing_has_what_is_started_page_by_page() {
    let (lists, mut machine) = (Profiles::<8, 128>::new(), Machine::new(active()));
    let callback = ProfileObject::callback(Rules::LATEST, source(7), &Nothing).unwrap();
    lists.start(leak(callback), &mut machine).unwrap();
    let asked = BasicProfile { process: process(9), size: 6, ..request(buffer(2)) };
    lists.start(leak(object(asked, &machine)), &mut machine).unwrap();
    lists.start(everywhere(2, &machine), &mut machine).unwrap();
    let page = |from| lists.try_list::<2>(from).unwrap();
    let plain = |page: heapless::Vec<ListedProfile, 2>| -> Vec<_> {
        let flat = |it: &ListedProfile| {
            let process = it.process.map(ProcessId::get);
            (it.source.value(), process, it.range.clone(), it.bucket.map(Bucket::bytes))
        };
        page.iter().map(flat).collect()
    };
    let first =
        [(0, Some(9), Some(0x1000..0x1006), Some(4)), (2, None, Some(0x1000..0x1004), Some(4))];
    assert_eq!(plain(page(0)), first);
    assert_eq!(plain(page(2)), [(7, None, None, None)]);
    assert_eq!(plain(page(3)), []);
}

#[test]
fn the_running_sources_of_a_processor_are_each_named_once() {
    let (lists, mut machine) = (Lists::new(), Machine::new(active()));
    for (from, processors) in [(2, &[0, 1][..]), (2, &[1]), (0x19, &[1, 3]), (0x1A, &[0])] {
        lists.start(on(from, processors, &machine), &mut machine).unwrap();
    }
    let running = |number| {
        let sources = lists.try_running_sources(processor(0, number)).unwrap();
        sources.iter().map(|source| source.value()).collect::<Vec<_>>()
    };
    assert_eq!([0, 1, 3, 5].map(running), [vec![2, 0x1A], vec![2, 0x19], vec![0x19], vec![]]);
}

#[test]
fn a_listing_does_not_wait_for_a_task_that_writes() {
    /// Hardware that lists the started objects while it starts a source.
    struct Listing<'l>(Machine, &'l Lists);

    impl ProfileHardware for Listing<'_> {
        fn this_processor(&self) -> ProcessorNumber {
            self.0.this_processor()
        }
        fn in_interrupt(&self) -> bool {
            false
        }
        fn active_processors(&self) -> Affinity {
            self.0.active_processors()
        }
        fn supports(&self, source: KProfileSource) -> bool {
            self.0.supports(source)
        }
        fn start(
            &mut self,
            on: ProcessorNumber,
            source: KProfileSource,
        ) -> Result<(), InterfaceError> {
            assert_eq!(self.1.try_list::<1>(0), Err(ProfileError::Busy));
            assert_eq!(self.1.try_running_sources(on), Err(ProfileError::Busy));
            self.0.start(on, source)
        }
        fn stop(
            &mut self,
            on: ProcessorNumber,
            source: KProfileSource,
        ) -> Result<(), InterfaceError> {
            self.0.stop(on, source)
        }
    }

    let lists = Lists::new();
    let object = everywhere(2, &Machine::new(active()));
    lists.start(object, &mut Listing(Machine::new(active()), &lists)).unwrap();
    assert_eq!(lists.try_list::<4>(0).unwrap().len(), 1);
}
