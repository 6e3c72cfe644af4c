;; A component of another world: it imports a key-value store, which no proxy has.
(component
  (import "other:store/keys@1.0.0" (instance (export "get" (func (param "key" string) (result string))))))
