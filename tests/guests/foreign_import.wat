;; A component of another world: it wants a file system, and a key-value store that no proxy has.
(component
  (import "other:store/keys@1.0.0" (instance (export "get" (func (param "key" string) (result string))))))
