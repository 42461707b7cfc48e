// Package cli is the command line of meshrun: one file per verb, over a State that holds all that a program gets from its surroundings.
//
// It owns flags, messages, progress and exit codes (package exit). Nothing in it reads a global of the process, so that tests run the whole
// program in-process.
package cli
