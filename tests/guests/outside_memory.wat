;; Returns an answer that is outside its memory.
(module
  (memory (export "memory") 1)
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024))
  (func (export "weir:policy/handler@0.9.0#configure") (param i32 i32) (result i32) (i32.const 0x7fff_fff0))
  (func (export "weir:policy/handler@0.9.0#decide") (param i32 i32) (result i32) (i32.const 0x7fff_fff0))
  (func (export "weir:policy/handler@0.9.0#settle") (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32) (i32.const 0)))
