//! Tests of feeds and of the events that they hold.

use crate::events::feed::{FedEvent, FedEvents, FedEventsError, Feed, FeedSlot};
use crate::events::key::{EventKey, Privilege};

const KEYS: [EventKey; 16] = {
    let mut keys = [EventKey::general(0, 1); 16];
    let mut n = 0;
    while n < 16 {
        keys[n] = EventKey::general(n as u16, 1);
        n += 1;
    }
    keys
};

fn events() -> FedEvents {
    FedEvents::new(&KEYS).unwrap()
}

fn event(n: usize) -> FedEvent {
    events().find(KEYS[n]).unwrap()
}

#[test]
fn the_share_of_the_named_cell_is_exact_and_none_is_lost() {
    let mut feed = Feed::new(&events());
    feed.add(event(0), Privilege::User, 10).unwrap();
    feed.add(event(0), Privilege::Kernel, 11).unwrap();
    feed.add(event(5), Privilege::Kernel, 100).unwrap();
    let taken = feed.take(8, 21, FeedSlot::of(event(0), true, true));
    assert_eq!(taken.count(event(0), Privilege::User), 3);
    assert_eq!(taken.count(event(0), Privilege::Kernel), 5);
    assert_eq!(taken.count(event(5), Privilege::Kernel), 38);
    assert_eq!(feed.count(event(5), Privilege::Kernel), 62);
    assert_eq!(feed.count(event(0), Privilege::User), 7);
}

#[test]
fn events_are_found_in_whatever_order_they_are_named() {
    for count in 0..=16 {
        let keys: std::vec::Vec<_> = (0..count).map(|n| EventKey::general(n * 7 % 16, 1)).collect();
        let events = FedEvents::new(&keys).unwrap();
        let mut places: std::vec::Vec<_> =
            keys.iter().map(|key| events.find(*key).unwrap().place).collect();
        places.sort();
        assert!(places.iter().copied().eq(0..count as u8));
    }
}

#[test]
fn a_feed_saturates() {
    let mut feed = Feed::new(&events());
    for _ in 0..3 {
        feed.add(event(15), Privilege::User, u64::MAX).unwrap();
        feed.add(event(15), Privilege::Kernel, u64::MAX).unwrap();
    }
    assert_eq!(feed.count(event(15), Privilege::User), Feed::MAXIMUM);
    assert_eq!(feed.at(FeedSlot::of(event(15), true, true)), 2 * Feed::MAXIMUM);
}

#[test]
fn there_is_room_for_sixteen_events_each_named_once() {
    let one_more = [&KEYS[..], &[EventKey::general(0, 2)]].concat();
    assert_eq!(FedEvents::new(&one_more), Err(FedEventsError::TooMany(17)));
    assert_eq!(events().find(one_more[16]), None);
    assert_eq!(events().find(KEYS[15].edge()), None);
    assert_eq!(FedEvents::NONE.find(KEYS[0]), None);
    let instructions = EventKey::general(0xC0, 0);
    let twice = [EventKey::fixed(0).unwrap(), EventKey::fixed(2).unwrap(), instructions];
    assert_eq!(FedEvents::new(&twice), Err(FedEventsError::Twice(instructions)));
}

#[test]
fn an_event_of_others_is_not_added() {
    let mut feed = Feed::new(&FedEvents::new(&KEYS[1..]).unwrap());
    assert_eq!(feed.add(event(3), Privilege::User, 1), Err(FedEventsError::OtherEvents));
    assert!(feed.is_empty());
    assert_eq!(feed.count(event(3), Privilege::User), 0);
}
