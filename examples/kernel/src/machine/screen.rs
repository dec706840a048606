//! The screen, where the loader left a framebuffer: text, and squares of black and white.

use spin::Mutex;

use crate::machine::boot::Framebuffer;
use crate::machine::paging;

/// Pixels of a character's cell: the font's 8 rows, twice each.
const CELL: (usize, usize) = (8, 16);
const WHITE: u8 = 0xFF;
const GRAY: u8 = 0xC0;

/// A framebuffer that is mapped, and the place of the next character.
struct Screen {
    pixels: *mut u8,
    shape: Framebuffer,
    column: usize,
    row: usize,
}

// SAFETY: the memory is the screen's, which any processor can write.
unsafe impl Send for Screen {}

static SCREEN: Mutex<Option<Screen>> = Mutex::new(None);

/// Maps the framebuffer, and clears it. Boot processor, before the others run.
pub fn initialize(shape: Framebuffer) {
    let Some(pixels) = paging::map_device(shape.address, shape.pitch * shape.height) else {
        return;
    };
    let mut screen = Screen { pixels, shape, column: 0, row: 0 };
    screen.clear();
    *SCREEN.lock() = Some(screen);
}

/// Returns the pixels of a row, and the rows.
pub fn pixels() -> Option<(usize, usize)> {
    with(|screen| (screen.shape.width, screen.shape.height))
}

/// Clears the screen; text goes on at its top.
pub fn clear() {
    with(Screen::clear);
}

/// Prints text. Behind the last row it goes on at the top of a clear screen.
pub fn print(text: &str) {
    with(|screen| text.bytes().for_each(|byte| screen.put(byte)));
}

/// Fills a square of `side` pixels.
pub fn square(x: usize, y: usize, side: usize, white: bool) {
    with(|screen| {
        let (right, bottom) = (x + side, y + side);
        if right > screen.shape.width || bottom > screen.shape.height {
            return;
        }
        for y in y..bottom {
            for x in x..right {
                screen.pixel(x, y, if white { WHITE } else { 0 });
            }
        }
    });
}

/// Uses the screen. Nothing, if there is none, or an interrupt found it in use.
fn with<R>(function: impl FnOnce(&mut Screen) -> R) -> Option<R> {
    SCREEN.try_lock()?.as_mut().map(function)
}

impl Screen {
    fn clear(&mut self) {
        for y in 0..self.shape.height {
            for x in 0..self.shape.width {
                self.pixel(x, y, 0);
            }
        }
        (self.column, self.row) = (0, 0);
    }

    /// Sets a pixel of the screen, for which it is not beyond it, to a gray.
    fn pixel(&mut self, x: usize, y: usize, gray: u8) {
        let at = y * self.shape.pitch + x * self.shape.pixel;
        // SAFETY: the pixel is in the framebuffer, which is mapped; pixels of 4 bytes are aligned to them.
        unsafe {
            let place = self.pixels.add(at);
            match self.shape.pixel {
                4 => place.cast::<u32>().write_volatile(u32::from(gray) * 0x01_0101),
                _ => (0..3).for_each(|color| place.add(color).write_volatile(gray)),
            }
        }
    }

    fn put(&mut self, byte: u8) {
        if byte == b'\n' || (self.column + 1) * CELL.0 > self.shape.width {
            (self.column, self.row) = (0, self.row + 1);
        }
        if byte == b'\n' {
            return;
        }
        if (self.row + 1) * CELL.1 > self.shape.height {
            self.clear();
        }
        let glyph = font8x8::legacy::BASIC_LEGACY.get(usize::from(byte)).copied().unwrap_or([0; 8]);
        let (left, top) = (self.column * CELL.0, self.row * CELL.1);
        for y in 0..CELL.1 {
            for x in 0..CELL.0 {
                let on = glyph[y / 2] >> x & 1 != 0;
                self.pixel(left + x, top + y, if on { GRAY } else { 0 });
            }
        }
        self.column += 1;
    }
}
