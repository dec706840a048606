//! Hardware beside the counters, in the counters' interrupt and while the counters are lent: fake branch records that
//! share the overflow status, an op sampler with a status of its own, and a buffer that owns a counter.

mod alone;
mod asked;
mod disturbed;
mod everything;
mod everything_disturbed;
mod hardware;
mod lasting;
mod lasting_events;
mod passes;
mod recorder;
mod recording;
mod scene;
mod windows;
