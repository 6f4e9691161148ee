"""autofit beside other finders of batch sizes, on the same models under the same memory limit."""
