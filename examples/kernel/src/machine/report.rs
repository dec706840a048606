//! Lines for the serial line's reader: text, or defmt frames. Task context only.

/// Reports one line. The arguments implement `Display`, and with defmt `Format`.
#[cfg(not(feature = "defmt"))]
#[macro_export]
macro_rules! line {
    ($format:literal $($argument:tt)*) => {{
        use core::fmt::Write as _;
        // Writing to the serial line and the screen does not fail.
        let _ = writeln!($crate::machine::report::Lines, $format $($argument)*);
    }};
}

/// The serial line, and the screen where there is one.
#[cfg(not(feature = "defmt"))]
#[derive(Debug)]
pub struct Lines;

#[cfg(not(feature = "defmt"))]
impl core::fmt::Write for Lines {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        crate::machine::serial::Serial::send(text.as_bytes());
        crate::machine::screen::print(text);
        Ok(())
    }
}

/// Reports one line, as a defmt frame.
#[cfg(feature = "defmt")]
#[macro_export]
macro_rules! line {
    ($format:literal $($argument:tt)*) => { defmt::println!($format $($argument)*) };
}

/// Makes an argument of [`line!`] of a value that implements `Display` alone.
#[cfg(not(feature = "defmt"))]
pub fn text<T: core::fmt::Display>(value: &T) -> &T {
    value
}

/// The frames go out as they are made, one at a time.
#[cfg(feature = "defmt")]
mod logger {
    use core::cell::UnsafeCell;

    use critical_section::RestoreState;

    use crate::machine::serial::Serial;

    #[defmt::global_logger]
    struct Logger;

    struct State(UnsafeCell<(defmt::Encoder, RestoreState)>);

    // SAFETY: accessed in a critical section only.
    unsafe impl Sync for State {}

    static STATE: State = State(UnsafeCell::new((defmt::Encoder::new(), RestoreState::invalid())));

    // SAFETY: a critical section lasts from `acquire` to `release`.
    unsafe impl defmt::Logger for Logger {
        fn acquire() {
            // SAFETY: `release` ends it.
            let restore = unsafe { critical_section::acquire() };
            // SAFETY: in the critical section.
            let (encoder, saved) = unsafe { &mut *STATE.0.get() };
            *saved = restore;
            encoder.start_frame(Serial::send);
        }

        unsafe fn flush() {}

        unsafe fn release() {
            // SAFETY: in the critical section, which ends here.
            unsafe {
                let (encoder, saved) = &mut *STATE.0.get();
                encoder.end_frame(Serial::send);
                critical_section::release(*saved);
            }
        }

        unsafe fn write(bytes: &[u8]) {
            // SAFETY: in the critical section.
            let (encoder, _) = unsafe { &mut *STATE.0.get() };
            encoder.write(bytes, Serial::send);
        }
    }
}

/// Makes an argument of [`line!`] of a value that implements `Display` alone.
#[cfg(feature = "defmt")]
pub fn text<T: core::fmt::Display>(value: &T) -> defmt::Display2Format<'_, T> {
    defmt::Display2Format(value)
}
