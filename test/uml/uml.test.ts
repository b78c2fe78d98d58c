/** The first half of the specs; in a stock kernel all. */
import { defineSpecs } from './suite.ts';

defineSpecs(0);
