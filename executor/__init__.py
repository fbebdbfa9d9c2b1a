"""Does what orders say and reports facts. Never decides, never predicts, never sees a predicted byte."""
