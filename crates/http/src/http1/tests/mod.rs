//! The tests of HTTP/1.1: by section of the RFCs (`heads`, `framing`, `decoding`, `writing`),
//! against models (`models`), and named cases and random streams against hyper (`cases`,
//! `differential`). The other modules are their tools, which the fuzz targets use as well.

mod cases;
mod check;
mod decoding;
mod differential;
mod drive;
mod framing;
mod heads;
mod models;
mod naive;
mod reference;
mod send;
mod writing;
