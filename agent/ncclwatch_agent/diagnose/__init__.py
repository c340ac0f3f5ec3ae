"""The command `ncclwatch diagnose`: what do stacks tell of jobs that never attached?"""
