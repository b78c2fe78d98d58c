/** The second half of the specs in user-mode-linux. */
import { defineSpecs } from './suite.ts';

defineSpecs(1);
