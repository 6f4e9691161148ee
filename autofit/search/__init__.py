"""One search: ask, screen, probe, record, tell; then race and prove. Needs a bench and never torch."""
